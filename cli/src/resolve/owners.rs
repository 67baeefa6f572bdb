//! Names of users and groups, from /etc/passwd and /etc/group.
//!
//! Users that come from elsewhere (LDAP, systemd) are shown by number: asking for
//! them takes the C library's getpwuid(3), which this command does without.

use std::collections::HashMap;
use std::fs;

/// Names by number.
pub(super) struct Names(HashMap<u32, String>);

impl Names {
    pub(super) fn of_users() -> Names {
        Names::read("/etc/passwd")
    }

    pub(super) fn of_groups() -> Names {
        Names::read("/etc/group")
    }

    /// Without the file there are numbers only.
    fn read(file: &str) -> Names {
        let text = fs::read(file).unwrap_or_default();
        Names::parse(&String::from_utf8_lossy(&text))
    }

    /// Lines of `name:password:number:...`; of two names the first counts.
    fn parse(text: &str) -> Names {
        let mut names = HashMap::new();
        for line in text.lines() {
            let mut fields = line.split(':');
            if let (Some(name), Some(Ok(number))) = (fields.next(), fields.nth(1).map(str::parse)) {
                names.entry(number).or_insert_with(|| name.to_owned());
            }
        }
        Names(names)
    }

    pub(super) fn of(&self, number: u32) -> String {
        let name = self.0.get(&number).cloned();
        name.unwrap_or_else(|| number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_number_and_numbers_stand_for_themselves() {
        let names = Names::parse("root:x:0:0::/root:/bin/sh\ntoor:x:0:\n\n+\nu:x:12\n");
        assert_eq!(
            [0, 12, 7].map(|number| names.of(number)),
            ["root", "u", "7"]
        );
    }
}
