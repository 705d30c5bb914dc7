//! Names of users and groups.

use std::fs;

/// The name of a user, or the number.
pub fn user(uid: u32) -> String {
    name("/etc/passwd", uid)
}

/// The name of a group, or the number.
pub fn group(gid: u32) -> String {
    name("/etc/group", gid)
}

/// The number of a group by name or number.
pub fn gid(name: &str) -> Option<u32> {
    let text = fs::read_to_string("/etc/group").unwrap_or_default();
    find_id(&text, name).or_else(|| name.parse().ok())
}

fn find_id(text: &str, name: &str) -> Option<u32> {
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

fn name(file: &str, id: u32) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    find(&text, id).map_or_else(|| id.to_string(), str::to_owned)
}

/// Both files have the name first and the number third.
fn find(text: &str, id: u32) -> Option<&str> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn third_field_to_first() {
        let text = "root:x:0:root\nbroken\n:x\ndsadev:x:999:alice,bob\n";
        assert_eq!((find_id(text, "dsadev"), find_id(text, "broken")), (Some(999), None));
        assert_eq!((find(text, 0), find(text, 999), find(text, 1)), (Some("root"), Some("dsadev"), None));
    }
}
