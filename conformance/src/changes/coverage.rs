//! Which operations came to what: a test that reaches nothing proves nothing.

use std::collections::BTreeMap;
use std::fmt;

use crate::answer::errno_name;
use crate::changes::answer::Answer;
use crate::changes::op::{Op, Step};

/// How often each kind of operation came to each errno (0: success).
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Operations in all.
    pub ops: usize,
    /// Sequences that ended early at a difference that is meant.
    pub stopped: usize,
    counts: BTreeMap<(String, i32), usize>,
}

impl Coverage {
    /// Counts one more answer.
    pub fn count(&mut self, step: &Step, answer: &Answer) {
        self.ops += 1;
        *self
            .counts
            .entry((kind(&step.op), answer.outcome.errno()))
            .or_default() += 1;
    }

    /// How often operations of this kind came to this.
    pub fn of(&self, kind: &str, errno: i32) -> usize {
        self.counts
            .get(&(kind.to_string(), errno))
            .copied()
            .unwrap_or(0)
    }

    /// The share of operations that succeeded, in percent.
    pub fn successes(&self) -> usize {
        let done: usize = self
            .counts
            .iter()
            .filter(|((_, errno), _)| *errno == 0)
            .map(|(_, count)| count)
            .sum();
        done * 100 / self.ops.max(1)
    }
}

/// The call, with its variant where that makes it another call.
fn kind(op: &Op) -> String {
    let kind = op.kind();
    match op {
        Op::Rename { flags, .. } if !flags.is_empty() => format!("{kind}+{:#x}", flags.bits()),
        Op::Allocate { mode, .. } if !mode.is_empty() => format!("{kind}+{:#x}", mode.bits()),
        Op::SetXattr { name, .. } | Op::GetXattr { name, .. } | Op::RemoveXattr { name, .. } => {
            let end = name.find('.').map_or(name.len(), |dot| dot + 1);
            let prefix = if name.contains("posix_acl") {
                name
            } else {
                &name[..end]
            };
            format!("{kind} {prefix}")
        }
        _ => kind.into(),
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations, {}% succeeded, {} sequences ended early:",
            self.ops,
            self.successes(),
            self.stopped
        )?;
        let mut last = "";
        for ((kind, errno), count) in &self.counts {
            if kind != last {
                write!(f, "\n  {kind}:")?;
            }
            last = kind;
            write!(f, " {} {count}", errno_name(*errno))?;
        }
        Ok(())
    }
}
