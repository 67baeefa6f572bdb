//! Maps made by hand, sound and not.

use super::Mapping;
use crate::error::Result;
use crate::testing::{HandMade, open};

const EXTENTS: u32 = 0x8_0000;

fn header(entries: u16, max: u16, depth: u16) -> Vec<u8> {
    [0xf30a, entries, max, depth, 0, 0]
        .iter()
        .flat_map(|field: &u16| field.to_le_bytes())
        .collect()
}

fn extent(first: u32, length: u16, start: u32) -> Vec<u8> {
    [
        &first.to_le_bytes()[..],
        &length.to_le_bytes(),
        &[0; 2],
        &start.to_le_bytes(),
    ]
    .concat()
}

fn index(first: u32, leaf: u32) -> Vec<u8> {
    [&first.to_le_bytes()[..], &leaf.to_le_bytes(), &[0; 4]].concat()
}

/// Maps `logical` of a file with this `i_block`, and these blocks elsewhere.
fn map(flags: u32, root: &[u8], blocks: &[(usize, Vec<u8>)], logical: u64) -> Result<Mapping> {
    let mut image = HandMade::new();
    image.file(1 << 30, flags, root);
    for (number, bytes) in blocks {
        image.put(number * 1024, bytes);
    }
    let volume = open(image.0)?;
    volume.map(&volume.inode(12)?, logical)
}

fn at(physical: u64, length: u32) -> Mapping {
    Mapping {
        physical: Some(physical),
        length,
        unwritten: false,
    }
}

/// Runs, holes before, between and behind them, and unwritten extents.
#[test]
fn extents_and_the_holes_between_them() {
    let root = [
        header(2, 4, 0),
        extent(5, 10, 50),
        extent(20, 0x8000 + 4, 70),
    ]
    .concat();
    let map = |logical| map(EXTENTS, &root, &[], logical).unwrap();
    assert_eq!(map(0), Mapping::hole(5));
    assert_eq!(map(5), at(50, 10));
    assert_eq!(map(14), at(59, 1));
    assert_eq!(map(15), Mapping::hole(5));
    let unwritten = Mapping {
        unwritten: true,
        ..at(71, 3)
    };
    assert_eq!(map(21), unwritten);
    assert_eq!(map(24).physical, None);
    assert_eq!(map(1 << 32), Mapping::hole(u64::MAX));
}

/// A tree of two levels, with a hole across its nodes.
#[test]
fn a_tree_is_walked_to_its_leaves() {
    let root = [header(2, 4, 1), index(0, 30), index(100, 31)].concat();
    let blocks = [
        (30, [header(1, 84, 0), extent(0, 3, 60)].concat()),
        (31, [header(1, 84, 0), extent(110, 3, 65)].concat()),
    ];
    let map = |logical| map(EXTENTS, &root, &blocks, logical).unwrap();
    assert_eq!(map(2), at(62, 1));
    assert_eq!(map(3), Mapping::hole(97));
    assert_eq!(map(100), Mapping::hole(10));
    assert_eq!(map(111), at(66, 2));
}

/// Everything that the descent relies on is checked, and the error names the damage.
#[test]
fn extents_that_contradict_themselves_are_named() {
    let leaf =
        |entries: &[Vec<u8>]| [header(entries.len() as u16, 84, 0), entries.concat()].concat();
    let below = |node: Vec<u8>| ([header(1, 4, 1), index(5, 30)].concat(), vec![(30, node)]);
    let alone = |root: Vec<u8>| (root, vec![]);
    let cases = [
        (alone(vec![0; 12]), "inode 12: bad eh_magic: 0x0000"),
        (
            alone(header(1, 5, 0)),
            "inode 12: bad eh_max: 5 where 4 fit",
        ),
        (
            alone(header(5, 4, 0)),
            "inode 12: bad eh_entries: 5 of at most 4",
        ),
        (
            alone(header(0, 4, 6)),
            "inode 12: bad eh_depth: 6 is too deep",
        ),
        (
            alone(header(0, 4, 1)),
            "inode 12: bad eh_entries: no way down",
        ),
        (
            alone([header(2, 4, 0), extent(5, 2, 50), extent(6, 2, 60)].concat()),
            "inode 12: bad ee_block: 6 outside of 7..4294967296",
        ),
        (
            alone([header(1, 4, 0), extent(5, 0, 50)].concat()),
            "inode 12: bad ee_len: 0 from 5",
        ),
        (
            alone([header(1, 4, 0), extent(5, 100, 150)].concat()),
            "inode 12: bad ee_start: 100 blocks from 150",
        ),
        (
            alone([header(1, 4, 1), index(0, 5000)].concat()),
            "inode 12: bad ei_leaf: 1 blocks from 5000",
        ),
        (
            below([header(1, 84, 1), index(5, 30)].concat()),
            "inode 12, block 30: bad eh_depth: 1 below 1",
        ),
        (
            below(leaf(&[extent(4, 1, 50)])),
            "inode 12, block 30: bad ee_block: 4 outside of 5..4294967296",
        ),
    ];
    for ((root, blocks), expected) in cases {
        let err = map(EXTENTS, &root, &blocks, 7).unwrap_err();
        assert_eq!(err.to_string(), expected);
    }
}

/// All four kinds of block numbers: runs, holes, trees that are not there.
#[test]
fn block_numbers_of_all_levels() {
    let numbers = |numbers: &[(usize, u32)]| {
        let mut bytes = vec![0; 1024];
        for (index, number) in numbers {
            bytes[index * 4..index * 4 + 4].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    };
    let root = numbers(&[(0, 50), (1, 51), (2, 60), (12, 20), (14, 21)])[..60].to_vec();
    let blocks = [
        (20, numbers(&[(0, 70), (255, 71)])),
        (21, numbers(&[(1, 22)])),
        (22, numbers(&[(2, 23)])),
        (23, numbers(&[(3, 80), (4, 81), (5, 82)])),
    ];
    let map = |logical| map(0, &root, &blocks, logical).unwrap();
    assert_eq!(map(0), at(50, 2));
    assert_eq!(map(2), at(60, 1));
    assert_eq!(map(3), Mapping::hole(9));
    assert_eq!(map(12), at(70, 1));
    assert_eq!(map(12 + 255), at(71, 1));
    let (single, double) = (256, 256 * 256);
    let doubly = 12 + single;
    assert_eq!(map(doubly + 5), Mapping::hole(double - 5));
    let triply = doubly + double;
    assert_eq!(map(triply + 7), Mapping::hole(double - 7));
    let found = triply + double + 2 * single + 4;
    assert_eq!(map(found), at(81, 2));
    assert_eq!(map(found + 2), Mapping::hole(250));
    assert_eq!(map(triply + 256 * double).physical, None);
}

/// A block number that is not in the file system is an error with its place.
#[test]
fn block_numbers_outside_are_named() {
    let number = |number: u32| number.to_le_bytes().repeat(15);
    let err = map(0, &number(HandMade::BLOCKS), &[], 0).unwrap_err();
    assert_eq!(
        err.to_string(),
        "inode 12: bad block number: 1 blocks from 200"
    );
    let err = map(0, &number(30), &[(30, number(1))], 12).unwrap_err();
    assert_eq!(
        err.to_string(),
        "inode 12, block 30: bad block number: 1 blocks from 1"
    );
}
