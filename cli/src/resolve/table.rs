//! One trace as text, a line per step.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;

use rcuwalk::{Attr, Context, FileType, InodeKey, Origin, Trace, TraceStep, Walk, Why};
use rcuwalk_hostfs::host_mount_id;

use super::owners::Names;
use super::shown;
use crate::failure::errno_text;

/// How traces are written.
pub(super) struct Table {
    users: Names,
    groups: Names,
    /// The type of each mount, by the host's mount id.
    mounts: HashMap<u64, String>,
    /// The mount that relative paths start in.
    cwd: Option<u64>,
}

impl Table {
    pub(super) fn new(ctx: &Context) -> Table {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Table {
            users: Names::of_users(),
            groups: Names::of_groups(),
            mounts: mount_types(&mountinfo),
            cwd: host_mount_id(ctx.cwd().inode().inode_key()),
        }
    }

    /// The path, a line per step, and an empty line. `target` is that of a link at
    /// the end.
    pub(super) fn of(&self, path: &[u8], trace: &Trace, target: Option<&[u8]>) -> String {
        let error = trace
            .result
            .as_ref()
            .err()
            .map(|err| errno_text(err.errno()));
        let rows: Vec<_> = self.rows(trace, target, error.as_deref());
        let width = |column: fn(&Row) -> &String| {
            let widths = rows.iter().map(|row| column(row).chars().count());
            widths.max().unwrap_or(0)
        };
        let (owner, name) = (width(|row| &row.owner), width(|row| &row.name));
        let how = width(|row| &row.how);

        let mut text = format!("{}\n", shown(path));
        if let (true, Some(error)) = (rows.is_empty(), &error) {
            // Refused as a whole: too long, or empty.
            let _ = writeln!(text, "- {error}");
        }
        for row in &rows {
            let Row { mode, .. } = row;
            let line = format!(
                "{mode:<10} {:<owner$} {:<name$}  {:<how$}  {}",
                row.owner, row.name, row.how, row.walk
            );
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text + "\n"
    }

    fn rows(&self, trace: &Trace, target: Option<&[u8]>, error: Option<&str>) -> Vec<Row> {
        let mut mount = self.cwd;
        let mut stopped = trace.stopped;
        let last = trace.steps.len().wrapping_sub(1);
        let steps = trace.steps.iter().enumerate();
        steps
            .map(|(at, step)| {
                let (target, error) = if at == last {
                    (target, error)
                } else {
                    (None, None)
                };
                let crossed = self.crossed(step, &mut mount);
                // The reason stands once, where the walks change.
                let why = match step.walk {
                    Walk::Ref => stopped.take(),
                    Walk::Rcu => None,
                };
                Row {
                    mode: step.attr.as_ref().map(mode).unwrap_or_default(),
                    owner: step
                        .attr
                        .as_ref()
                        .map(|attr| self.owner(attr))
                        .unwrap_or_default(),
                    name: name(step, target, error),
                    how: how(step, crossed),
                    walk: walk(step.walk, why),
                }
            })
            .collect()
    }

    fn owner(&self, attr: &Attr) -> String {
        format!("{} {}", self.users.of(attr.uid), self.groups.of(attr.gid))
    }

    /// The mount that the step led to, if it is another one than before.
    fn crossed(&self, step: &TraceStep, mount: &mut Option<u64>) -> Option<String> {
        let is_link = step.attr.is_some_and(|attr| attr.kind == FileType::Symlink);
        let to = step.key.map(|key: InodeKey| host_mount_id(key))?;
        // A walk does not go into a link, and a text that starts at the root has not
        // crossed a mount point to get there.
        if is_link {
            return None;
        }
        let from = std::mem::replace(mount, to);
        let crosses = from != to && &*step.name != b"/";
        let kind = || to.and_then(|to| self.mounts.get(&to).cloned());
        crosses.then(|| kind().unwrap_or_else(|| "?".into()))
    }
}

struct Row {
    mode: String,
    owner: String,
    name: String,
    how: String,
    walk: String,
}

/// As `ls -l` shows it.
fn mode(attr: &Attr) -> String {
    let kind = match attr.kind {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::BlockDevice => 'b',
        FileType::CharDevice => 'c',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
    };
    let mut text = String::from(kind);
    // Per class: its three bits, and the special bit that shows in its `x`.
    let special = [(0o4000, 's', 'S'), (0o2000, 's', 'S'), (0o1000, 't', 'T')];
    for (class, (bit, with_x, without)) in special.into_iter().enumerate() {
        let bits = attr.mode >> (6 - 3 * class);
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (attr.mode & bit != 0, bits & 1 != 0) {
            (true, true) => with_x,
            (true, false) => without,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

fn name(step: &TraceStep, target: Option<&[u8]>, error: Option<&str>) -> String {
    let mut text = "  ".repeat(step.level) + &shown(&step.name);
    if let Some(target) = step.link.as_deref().or(target) {
        text += " -> ";
        text += &shown(target);
    }
    if let Some(error) = error {
        text += " - ";
        text += error;
    }
    text
}

fn how(step: &TraceStep, crossed: Option<String>) -> String {
    let how = match step.how {
        None => "not looked up",
        Some(Origin::Held) => "held",
        Some(Origin::Cached) => "cached",
        Some(Origin::Revalidated) => "revalidated",
        Some(Origin::LookedUp) => "looked up",
    };
    match crossed {
        Some(kind) => format!("{how}, mount {kind}"),
        None => how.into(),
    }
}

fn walk(walk: Walk, stopped: Option<Why>) -> String {
    let why = stopped.map(|why| match why {
        Why::NotCached => "name not cached",
        Why::Moved => "directory changed meanwhile",
        Why::MountsChanged => "mounts changed meanwhile",
        Why::Revalidate => "name too old",
        Why::LinkNotCached => "link target not cached",
        Why::AclNotCached => "ACL not cached",
        Why::Dying => "object on its way out",
    });
    match (walk, why) {
        (Walk::Rcu, _) => "rcu-walk".into(),
        (Walk::Ref, None) => "ref-walk".into(),
        (Walk::Ref, Some(why)) => format!("ref-walk ({why})"),
    }
}

/// The type of each mount, by mount id. Lines are `ID ... - TYPE SOURCE OPTIONS`.
fn mount_types(mountinfo: &str) -> HashMap<u64, String> {
    let lines = mountinfo.lines().filter_map(|line| {
        let id = line.split(' ').next()?.parse().ok()?;
        let (_, rest) = line.split_once(" - ")?;
        Some((id, rest.split(' ').next()?.to_owned()))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_look_as_ls_shows_them() {
        let cases = [
            (FileType::Directory, 0o755, "drwxr-xr-x"),
            (FileType::Directory, 0o1777, "drwxrwxrwt"),
            (FileType::Regular, 0o4711, "-rws--x--x"),
            (FileType::Regular, 0o6644, "-rwSr-Sr--"),
            (FileType::CharDevice, 0o1600, "crw------T"),
        ];
        for (kind, bits, text) in cases {
            assert_eq!(mode(&Attr::new(1, kind, bits)), text);
        }
    }

    #[test]
    fn mounts_are_known_by_id_and_type() {
        let line = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\nodd\n";
        assert_eq!(mount_types(line), HashMap::from([(36, "ext3".into())]));
    }

    #[test]
    fn names_that_could_fool_a_terminal_are_escaped() {
        assert_eq!(shown("größe".as_bytes()), "größe");
        assert_eq!(shown(b"a\x1b[31mb"), "a\\x1b[31mb");
        assert_eq!(shown(b"caf\xe9"), "caf\\xe9");
    }
}
