//! POSIX ACLs as extended attributes.

/// The value of an attribute in the kernel's format, from words like `u:1000:6`: the user 1000
/// may read and write. Without an id, `u`, `g` and `o` are the owner, the group and others;
/// `m` is the mask. A word with another letter makes an entry that the kernel refuses.
///
/// # Panics
/// If a word lacks a part, or its last one is no number.
pub fn acl(text: &str) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for word in text.split_whitespace() {
        let parts: Vec<&str> = word.split(':').collect();
        let named = !parts[1].is_empty();
        let tag: u16 = match (parts[0], named) {
            ("u", false) => 1,
            ("u", true) => 2,
            ("g", false) => 4,
            ("g", true) => 8,
            ("m", _) => 16,
            ("o", _) => 32,
            _ => 64,
        };
        let id: u32 = parts[1].parse().unwrap_or(u32::MAX);
        value.extend(tag.to_le_bytes());
        value.extend(parts[2].parse::<u16>().unwrap().to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}
