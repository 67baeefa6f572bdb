//! Divides the queues among threads.
//!
//! The kernel has a queue for each possible processor, and puts a request into that of the
//! caller's processor. It uses none until all are served: so the queues of offline processors
//! share a thread.
//!
//! A thread runs on the processor of its queue, if it may: the caller goes to sleep there, and
//! the thread answers next, without waking another processor.

use std::fs;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A thread's queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Part {
    pub(super) queues: Vec<u16>,
    /// The processor to run on.
    pub(super) on: Option<u16>,
}

/// Returns a part for each of at least `threads` threads, and for as many more as the queues
/// need. 0 means two for each processor, because one of them may have to wait for a disk.
///
/// # Errors
/// /sys does not list the processors.
pub(super) fn parts(threads: usize) -> io::Result<Vec<Part>> {
    let list = |name: &str| {
        let told = fs::read_to_string(format!("/sys/devices/system/cpu/{name}"))?;
        parse(told.trim()).ok_or_else(|| io::Error::other(format!("{name}: {told:?}")))
    };
    let mine = sched_getaffinity(None)?;
    let may_run = |cpu: u16| usize::from(cpu) < CpuSet::MAX_CPU && mine.is_set(cpu.into());
    Ok(divide(
        &list("possible")?,
        &list("online")?,
        may_run,
        threads,
    ))
}

fn divide(
    possible: &[u16],
    online: &[u16],
    may_run: impl Fn(u16) -> bool,
    threads: usize,
) -> Vec<Part> {
    // One queue per processor, with the same numbers: if those have gaps, the kernel uses the
    // first queue for a number beyond the last.
    let queues = 0..u16::try_from(possible.len()).unwrap_or(u16::MAX);
    let (on, off): (Vec<u16>, Vec<u16>) = queues.partition(|queue| online.contains(queue));
    let each = match threads {
        0 => 2,
        threads => threads.div_ceil(on.len().max(1)),
    };
    let part = |queue: u16| Part {
        queues: vec![queue],
        on: may_run(queue).then_some(queue),
    };
    let mut parts: Vec<Part> = (0..each)
        .flat_map(|_| on.iter().copied().map(part))
        .collect();
    if !off.is_empty() {
        parts.push(Part {
            queues: off,
            on: None,
        });
    }
    parts
}

/// Binds this thread to that processor, if it may run there by now.
#[doc(alias = "sched_setaffinity(2)")]
pub(super) fn run_on(cpu: u16) {
    let mut only = CpuSet::new();
    only.set(cpu.into());
    if let Err(err) = sched_setaffinity(None, &only) {
        tracing::debug!(%err, cpu, "a thread that answers runs anywhere");
    }
}

/// Parses a list such as `0-3,8`.
fn parse(list: &str) -> Option<Vec<u16>> {
    let mut all = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let first: u16 = first.parse().ok()?;
        all.extend(first..=last.parse().ok()?);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(queues: &[u16], on: Option<u16>) -> Part {
        Part {
            queues: queues.to_vec(),
            on,
        }
    }

    #[test]
    fn every_queue_is_served() {
        let two = divide(&[0, 1], &[0, 1], |_| true, 3);
        let (first, second) = (part(&[0], Some(0)), part(&[1], Some(1)));
        assert_eq!(two, [&first, &second, &first, &second].map(Part::clone));
        assert_eq!(
            divide(&[0, 1], &[0, 1], |_| true, 1),
            [first.clone(), second]
        );
        assert_eq!(
            divide(&[0], &[0], |_| true, 0),
            [first.clone(), first.clone()]
        );
        let some_off = divide(&[0, 1, 2, 3], &[0, 2], |cpu| cpu == 0, 2);
        let others = part(&[1, 3], None);
        assert_eq!(some_off, [first, part(&[2], None), others]);
    }

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(parse("0").unwrap(), [0]);
        assert_eq!(parse("0-2,5,7-8").unwrap(), [0, 1, 2, 5, 7, 8]);
        assert_eq!(parse(""), None);
        assert_eq!(parse("a-b"), None);
    }

    #[test]
    fn this_machine_has_some() {
        let parts = parts(1).unwrap();
        assert!(!parts.is_empty());
        if let Some(cpu) = parts[0].on {
            std::thread::spawn(move || run_on(cpu)).join().unwrap();
        }
    }
}
