//! The parts of a comparison that walks and changes share: panics of the library that are
//! answers, and leaving parts of a case out.

use std::cell::Cell;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Panics of this thread are answers now: a thousand backtraces would be printed while one
    /// of them is being shrunk.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Calls the library under test. A panic of it is an answer like any other, which is shrunk and
/// reported together with the call that caused it: the `Err` is its message.
pub(crate) fn without_panic<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
    QUIET.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(call));
    QUIET.set(false);
    outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        text.unwrap_or("no message").into()
    })
}

/// Leaves out of a case runs of its parts: halves, quarters, and so on down to single ones; from
/// the end, because later parts depend on earlier ones. `without` takes the smaller case over if
/// it still shows the difference, and returns whether it does. Runs of up to `slide` parts may
/// start at each part; longer ones only where the run before ended.
pub(crate) fn leave_out<C>(
    case: &mut C,
    slide: usize,
    parts: impl Fn(&C) -> usize,
    mut without: impl FnMut(&mut C, Range<usize>) -> bool,
) {
    let mut length = parts(case).div_ceil(2).next_power_of_two();
    while length > 0 {
        let mut end = parts(case);
        while end > 0 {
            let start = end.saturating_sub(length);
            end = match without(case, start..end) {
                true => start.min(parts(case)),
                false if length <= slide => end - 1,
                false => start,
            };
        }
        length /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_difference_needs_is_left() {
        let mut case: Vec<u32> = (0..1000).collect();
        leave_out(&mut case, 1, Vec::len, |case, run| {
            let mut fewer = case.clone();
            fewer.drain(run);
            let differs = fewer.contains(&17) && fewer.contains(&801);
            if differs {
                *case = fewer;
            }
            differs
        });
        assert_eq!(case, [17, 801]);
    }

    #[test]
    fn the_only_part_is_left_out() {
        let mut case = vec![1];
        leave_out(&mut case, 1, Vec::len, |case, run| {
            case.drain(run).len() > 0
        });
        assert_eq!(case, [0; 0]);
    }

    #[test]
    fn a_panic_is_an_answer() {
        let message = without_panic(|| -> u8 { panic!("on {}", "purpose") });
        assert_eq!(message, Err("on purpose".into()));
        assert_eq!(without_panic(|| 1), Ok(1));
    }
}
