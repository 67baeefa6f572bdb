//! `Box<dyn Trait>` in one word.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

/// A value that is used through the trait object `D`.
pub trait AsDyn<D: ?Sized> {
    /// The value itself, as a `D`.
    fn as_dyn(&self) -> &D;
}

/// A box that is used through the trait object `D`.
///
/// A `Box<D>` is two words, because the pointer to the table of methods lies beside the pointer to
/// the value. Here it lies beside the value.
pub struct ThinBox<D: ?Sized + 'static> {
    value: NonNull<Value<D, ()>>,
    _owns: PhantomData<Box<D>>,
}

#[repr(C)]
struct Value<D: ?Sized + 'static, T> {
    methods: &'static Methods<D>,
    value: T,
}

struct Methods<D: ?Sized + 'static> {
    as_dyn: unsafe fn(NonNull<Value<D, ()>>) -> NonNull<D>,
    drop: unsafe fn(NonNull<Value<D, ()>>),
}

// SAFETY: it owns a value that is `Send` and `Sync` (`new`), and gives out `&D`.
unsafe impl<D: ?Sized + Send> Send for ThinBox<D> {}
// SAFETY: as above.
unsafe impl<D: ?Sized + Sync> Sync for ThinBox<D> {}

impl<D: ?Sized> ThinBox<D> {
    /// Bytes beside the value.
    pub const HEADER: usize = size_of::<&Methods<D>>();

    /// Moves `value` to the heap.
    pub fn new<T: AsDyn<D> + Send + Sync + 'static>(value: T) -> ThinBox<D> {
        let value = Box::new(Value {
            methods: const {
                &Methods {
                    as_dyn: as_dyn::<D, T>,
                    drop: drop_value::<D, T>,
                }
            },
            value,
        });
        ThinBox {
            value: NonNull::from(Box::leak(value)).cast(),
            _owns: PhantomData,
        }
    }

    fn methods(&self) -> &'static Methods<D> {
        // SAFETY: the value lives as long as `self`, and begins so whatever its type is.
        unsafe { self.value.as_ref() }.methods
    }
}

/// # Safety
/// `value` comes from a `ThinBox::new::<T>`, and lives for as long as the result is used.
unsafe fn as_dyn<D: ?Sized + 'static, T: AsDyn<D>>(value: NonNull<Value<D, ()>>) -> NonNull<D> {
    // SAFETY: the caller's promise.
    NonNull::from(
        unsafe { value.cast::<Value<D, T>>().as_ref() }
            .value
            .as_dyn(),
    )
}

/// # Safety
/// `value` comes from a `ThinBox::new::<T>`, and is not used afterwards.
unsafe fn drop_value<D: ?Sized + 'static, T>(value: NonNull<Value<D, ()>>) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(value.cast::<Value<D, T>>().as_ptr()) });
}

impl<D: ?Sized> Deref for ThinBox<D> {
    type Target = D;
    fn deref(&self) -> &D {
        // SAFETY: the methods are those of the value's type, and the value lives as long as `self`.
        unsafe { (self.methods().as_dyn)(self.value).as_ref() }
    }
}

impl<D: ?Sized> Drop for ThinBox<D> {
    fn drop(&mut self) {
        // SAFETY: the methods are those of the value's type; nothing comes after this.
        unsafe { (self.methods().drop)(self.value) }
    }
}

impl<D: ?Sized + fmt::Debug> fmt::Debug for ThinBox<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::fmt::Debug;
    use std::sync::Arc;

    use super::*;

    struct Shown<T>(T);

    impl<T: Debug> AsDyn<dyn Debug + Send> for Shown<T>
    where
        T: Send + 'static,
    {
        fn as_dyn(&self) -> &(dyn Debug + Send + 'static) {
            &self.0
        }
    }

    type Boxed = ThinBox<dyn Debug + Send>;

    #[test]
    fn it_is_one_word_and_the_value_keeps_its_type() {
        assert_eq!(size_of::<Option<Boxed>>(), size_of::<usize>());
        #[derive(Debug)]
        #[repr(align(64))]
        struct Aligned(#[expect(dead_code, reason = "shown")] u8);
        let all = [
            Boxed::new(Shown(7_u8)),
            Boxed::new(Shown("seven")),
            Boxed::new(Shown(())),
            Boxed::new(Shown(Aligned(7))),
        ];
        assert_eq!(format!("{all:?}"), r#"[7, "seven", (), Aligned(7)]"#);
    }

    #[test]
    fn the_value_is_dropped_once() {
        let value = Arc::new(());
        let boxed = Boxed::new(Shown(value.clone()));
        assert_eq!(Arc::strong_count(&value), 2);
        std::thread::spawn(move || drop(boxed)).join().unwrap();
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
