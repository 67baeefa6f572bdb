//! The same image scanned: every entry that the walk has compared with the kernel's comes
//! once, as the walk has found it, in either order and on several threads.

use std::collections::BTreeMap;
use std::error::Error;
use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;

use rcuwalk::Attr;
use rcuwalk::scan::{ScanEntry, Visitor};
use rcuwalk_ext4::Order;

use super::Walk;

/// The compared values of an entry: attributes, generation, target.
pub(super) type EntryData = (Attr, Option<u32>, Option<Vec<u8>>);

impl Walk<'_> {
    pub(super) fn scans(&mut self) {
        for order in [Order::Tree, Order::Inode] {
            let visitors = vec![Collector::default(), Collector::default()];
            let scan = self.ext4.scan().order(order);
            let (visitors, _) = scan.run(&AtomicBool::new(false), visitors);
            let mut scanned = BTreeMap::new();
            for visitor in visitors {
                for (path, why) in visitor.problems {
                    // What the walk could not read either is not in what it has said.
                    if self.coverage.unreadable == 0 {
                        self.failed(&path, &format!("{order:?} scan"), &why);
                    }
                }
                for (path, said) in visitor.entries {
                    if scanned.insert(path.clone(), said).is_some() {
                        self.same(&path, "times in one scan", &1, &2);
                    }
                }
            }
            self.same_entries_scanned(&format!("{order:?} scan"), scanned);
        }
    }

    fn same_entries_scanned(&mut self, what: &str, mut scanned: BTreeMap<Vec<u8>, EntryData>) {
        let walked = std::mem::take(&mut self.walked);
        for (path, said) in &walked {
            match scanned.remove(path) {
                Some(scanned) => self.same(path, what, said, &scanned),
                None => self.failed(path, what, &"no such entry"),
            }
        }
        for (path, said) in scanned {
            if !self.is_made(&path) && self.coverage.unreadable == 0 {
                self.differences.note(&path, what, &"no such entry", &said);
            }
        }
        self.walked = walked;
    }
}

#[derive(Default)]
struct Collector {
    entries: Vec<(Vec<u8>, EntryData)>,
    problems: Vec<(Vec<u8>, String)>,
}

impl Visitor for Collector {
    fn entry(&mut self, entry: &ScanEntry<'_>) -> ControlFlow<()> {
        let mut path = Vec::new();
        entry.path_into(&mut path);
        let target = entry.target.map(<[u8]>::to_vec);
        self.entries
            .push((path, (*entry.attr, entry.generation, target)));
        ControlFlow::Continue(())
    }

    fn problem(&mut self, path: &[u8], error: &dyn Error) -> ControlFlow<()> {
        self.problems.push((path.to_vec(), error.to_string()));
        ControlFlow::Continue(())
    }
}
