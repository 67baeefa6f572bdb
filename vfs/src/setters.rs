//! Setters of structs that may get more fields. They are `#[non_exhaustive]`, so other crates
//! cannot write them as literals.

/// Methods that take a value and return it with one field replaced. With `some`, the fields are
/// `Option`s, and the methods wrap their argument. For the crates of this workspace.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($name:ident $(<$life:lifetime>)? { $($field:ident: $type:ty),* $(,)? }) => {
        impl $(<$life>)? $name $(<$life>)? {
            $(
                #[doc = concat!("Replaces [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
    ($name:ident some { $($field:ident: $type:ty),* $(,)? }) => {
        impl $name {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = Some($field);
                    self
                }
            )*
        }
    };
}
