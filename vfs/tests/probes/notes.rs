//! The notes that say where a program's probes are.

use std::fs;
use std::path::Path;

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection};

/// A probe, as its note describes it.
#[derive(Debug)]
pub(crate) struct Note {
    pub(crate) provider: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
    /// The instruction there, or its first byte.
    pub(crate) at: u8,
    pub(crate) semaphore: u64,
}

/// The notes in the section `.note.stapsdt`, if the program has it.
pub(crate) fn notes_of(program: &Path) -> Vec<Note> {
    let data = fs::read(program).unwrap();
    let elf = ElfFile64::<Endianness>::parse(&*data).unwrap();
    let Some(section) = elf.section_by_name(".note.stapsdt") else {
        return Vec::new();
    };
    let mut rest = section.data().unwrap();
    let mut notes = Vec::new();
    while !rest.is_empty() {
        let name = take_word(&mut rest) as usize;
        let description = take_word(&mut rest) as usize;
        assert_eq!(take_word(&mut rest), 3, "the type of such notes");
        assert_eq!(take(&mut rest, name), b"stapsdt\0");
        notes.push(note(&elf, take(&mut rest, description)));
    }
    notes
}

fn note(elf: &ElfFile64<'_>, mut description: &[u8]) -> Note {
    let mut number = || u64::from_ne_bytes(take(&mut description, 8).try_into().unwrap());
    let (place, base, semaphore) = (number(), number(), number());
    let marked = elf.section_by_name(".stapsdt.base").unwrap();
    assert_eq!(base, marked.address(), "nobody moved the program's parts");
    let mut texts = description.split(|byte| *byte == 0);
    let mut text = || String::from_utf8(texts.next().unwrap().to_vec()).unwrap();
    Note {
        provider: text(),
        name: text(),
        arguments: text(),
        at: byte_at(elf, place),
        semaphore,
    }
}

/// The program's bytes at an address.
fn byte_at(elf: &ElfFile64<'_>, address: u64) -> u8 {
    let mut sections = elf.sections();
    let found = sections.find_map(|section| section.data_range(address, 1).unwrap());
    found.expect("a probe is in the program")[0]
}

fn take_word(rest: &mut &[u8]) -> u32 {
    u32::from_ne_bytes(take(rest, 4).try_into().unwrap())
}

/// The next `len` bytes; what follows them starts at a multiple of four.
fn take<'a>(rest: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, left) = rest.split_at(len.next_multiple_of(4).min(rest.len()));
    *rest = left;
    &taken[..len]
}
