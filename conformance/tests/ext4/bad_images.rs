//! Files that are not ext4 images, or not complete ones: clear errors that name the damage, no
//! panic, no invented contents.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use rcuwalk::{Credentials, FileType, LookupFlags, OpenFlags, Vfs};
use rcuwalk_conformance::ext4::fill::Contents;
use rcuwalk_conformance::ext4::recipe::Recipe;
use rcuwalk_conformance::ext4::workshop::{in_workshop, run};
use rcuwalk_conformance::settings::Settings;
use rcuwalk_ext4::{Ext4, Source};
use rcuwalk_testkit::Rng;
use rustix::process::Uid;

const IMAGE: Recipe = Recipe {
    name: "image",
    mke2fs: "-t ext4 -b 1024 -O inline_data",
    size: 16 << 20,
    before: &[],
    contents: Contents::LITTLE,
    after: &[],
};

/// EDGE-1: an image that was cut off anywhere is said to be, or read up to there.
#[test]
fn a_truncated_image_gives_errors_and_no_panic() {
    with_image("a_truncated_image_gives_errors_and_no_panic", |image| {
        let mut rng = Rng::derived(Settings::from_env(0).seed, 0);
        let whole = walk(&Ext4::options().open_source(image.clone()).unwrap());
        assert!(whole.problems.is_empty(), "{:?}", whole.problems);
        let borders = [
            0,
            1,
            1023,
            1024,
            1025,
            1024 + 264,
            2047,
            2048,
            4096,
            16_384,
            image.len() - 1,
        ];
        let lengths = borders
            .into_iter()
            .chain((0..60).map(|_| rng.below(image.len())));
        for length in lengths {
            match Ext4::options().open_source(image[..length].to_vec()) {
                Ok(ext4) => {
                    let part = walk(&ext4);
                    assert!(
                        part.entries <= whole.entries,
                        "more in {length} bytes than in all"
                    );
                    part.assert_named(length);
                }
                Err(err) => {
                    let said = err.to_string();
                    assert!(is_about_the_end(&said), "{length} bytes: {said}");
                }
            }
        }
    });
}

/// EDGE-1: an image that gets shorter while it is read gives errors, and no panic.
#[test]
fn an_image_that_shrinks_while_it_is_read_gives_errors() {
    with_image(
        "an_image_that_shrinks_while_it_is_read_gives_errors",
        |image| {
            for step in [30_000, 100_000, 1_000_000] {
                let length = AtomicU64::new(image.len() as u64);
                let shrinking = Shrinking {
                    image: image.clone(),
                    length,
                    step,
                };
                match Ext4::options().open_source(shrinking) {
                    Ok(ext4) => {
                        let part = walk(&ext4);
                        part.assert_named(step as usize);
                        assert!(!part.problems.is_empty(), "{step}: nobody noticed");
                    }
                    Err(err) => assert!(is_about_the_end(&err.to_string()), "{step}: {err}"),
                }
            }
        },
    );
}

/// Loses some bytes at its end with each read.
struct Shrinking {
    image: Vec<u8>,
    length: AtomicU64,
    step: u64,
}

impl Source for Shrinking {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let length = self.len()?;
        self.length.store(length.saturating_sub(self.step), Relaxed);
        let left = length.saturating_sub(offset).min(buf.len() as u64);
        self.image.read_at(&mut buf[..left as usize], offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.length.load(Relaxed))
    }
}

/// As above, with a file that another process truncates meanwhile.
#[test]
fn a_file_that_is_truncated_while_it_is_read_gives_errors() {
    with_image(
        "a_file_that_is_truncated_while_it_is_read_gives_errors",
        |image| {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("image");
            fs::write(&path, &image).unwrap();
            let ext4 = Ext4::open(&path).unwrap();
            let part = thread::scope(|scope| {
                scope.spawn(|| {
                    let file = File::options().write(true).open(&path).unwrap();
                    for left in (0..=20).rev() {
                        file.set_len(image.len() as u64 * left / 20).unwrap();
                        thread::yield_now();
                    }
                });
                walk(&ext4)
            });
            part.assert_named(0);
            // By now it is empty.
            walk(&ext4).assert_named(0);
        },
    );
}

/// EDGE-1: a file of another format is called by its name.
#[test]
fn what_is_no_image_is_called_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let said = |path: &Path| match Ext4::open(path) {
        Ok(ext4) => panic!("{} opened: {:?}", path.display(), ext4.info()),
        Err(err) => err.to_string(),
    };
    assert!(
        said(dir.path()).contains("a directory"),
        "{}",
        said(dir.path())
    );

    let missing = said(&dir.path().join("missing"));
    assert!(
        missing.contains("missing") && missing.contains("o such file"),
        "{missing}"
    );

    let file = |name: &str, contents: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, contents).unwrap();
        path
    };
    let empty = said(&file("empty", b""));
    assert!(is_about_the_end(&empty), "{empty}");
    let zeros = said(&file("zeros", &[0; 1 << 16]));
    assert!(zeros.contains("no ext2, ext3 or ext4"), "{zeros}");

    let mut xfs = vec![0; 1 << 16];
    xfs[..4].copy_from_slice(b"XFSB");
    let xfs = said(&file("xfs", &xfs));
    assert!(xfs.contains("xfs"), "{xfs}");
    let mut btrfs = vec![0; 1 << 20];
    btrfs[0x1_0040..0x1_0048].copy_from_slice(b"_BHRfS_M");
    let btrfs = said(&file("btrfs", &btrfs));
    assert!(btrfs.contains("btrfs"), "{btrfs}");

    let noise = {
        let mut rng = Rng::derived(1, 2);
        let words = (0..1 << 14).map(|_| rng.next_u64().to_le_bytes());
        words.flatten().collect::<Vec<u8>>()
    };
    said(&file("noise", &noise));
}

/// EDGE-1: a device that may not be read is named, with the reason.
#[test]
fn a_device_without_permission_is_named() {
    in_workshop("a_device_without_permission_is_named", |workshop| {
        let image = IMAGE.make(workshop, 1).unwrap();
        let mounted = workshop.mount(&image, &["ro"]).unwrap();
        let device = run("findmnt", ["-no", "SOURCE", mounted.at().to_str().unwrap()]).unwrap();
        let device = device.trim();
        // As root it can be read, and there is what was mounted.
        assert!(walk(&Ext4::open(device).unwrap()).entries > 500);

        let refused = thread::scope(|scope| {
            let nobody = scope.spawn(|| {
                // This thread only, which ends here; its capabilities go with the id.
                let nobody = Uid::from_raw(65_534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
                Ext4::open(device).map(|ext4| ext4.info())
            });
            nobody.join().unwrap()
        });
        let said = refused.unwrap_err().to_string();
        assert!(
            said.contains(device) && said.contains("ermission denied"),
            "{said}"
        );
    });
}

fn with_image(test: &str, work: impl FnOnce(Vec<u8>) + Send) {
    in_workshop(test, |workshop| {
        let image = IMAGE.make(workshop, Settings::from_env(0).seed).unwrap();
        work(fs::read(image).unwrap());
    });
}

/// True if the image's length is the reason given.
fn is_about_the_end(said: &str) -> bool {
    ["truncated", "ends at", "end of", "too little", "empty"]
        .iter()
        .any(|word| said.contains(word))
}

/// Everything that can be reached, and the errors for the rest.
#[derive(Default)]
struct Walked {
    entries: usize,
    problems: Vec<String>,
}

impl Walked {
    /// No problem is without words.
    fn assert_named(&self, what: usize) {
        let wordless = self.problems.iter().find(|problem| problem.len() < 5);
        assert_eq!(wordless, None, "{what}");
    }
}

/// Reads everything through the VFS and by number, and goes on after errors.
fn walk(ext4: &Ext4) -> Walked {
    let mut walked = Walked::default();
    let vfs = match Vfs::new(ext4.clone()) {
        Ok(vfs) => vfs,
        Err(err) => {
            walked.problems.push(err.to_string());
            return walked;
        }
    };
    let ctx = vfs.context(Credentials::root());
    let mut directories = vec![b"/".to_vec()];
    while let Some(dir) = directories.pop() {
        let listing = match vfs.read_dir(&ctx, &dir) {
            Ok(listing) => listing,
            Err(err) => {
                walked.problems.push(err.to_string());
                continue;
            }
        };
        for entry in listing {
            let entry = match entry {
                Ok(entry) => entry,
                Err(err) => {
                    walked.problems.push(err.to_string());
                    break;
                }
            };
            walked.entries += 1;
            let path = [&dir[..], b"/", &entry.name].concat();
            if let Err(err) = read(ext4, &vfs, &path, &mut directories) {
                walked.problems.push(err);
            }
        }
    }
    walked
}

fn read(ext4: &Ext4, vfs: &Vfs, path: &[u8], directories: &mut Vec<Vec<u8>>) -> Result<(), String> {
    let ctx = vfs.context(Credentials::root());
    let said = |err: rcuwalk::Error| err.to_string();
    let attr = vfs.stat(&ctx, path, LookupFlags::empty()).map_err(said)?;
    let ino = attr.ino as u32;
    ext4.xattrs(ino).map_err(|err| err.to_string())?;
    match attr.kind {
        FileType::Directory => directories.push(path.to_vec()),
        FileType::Symlink => drop(vfs.read_link(&ctx, path).map_err(said)?),
        FileType::Regular => {
            let file = vfs
                .open(&ctx, path, OpenFlags::READ | OpenFlags::NOFOLLOW)
                .map_err(said)?;
            let mut buf = vec![0; 20_000];
            for offset in [0, 20_000, 12 * 1024, attr.size.saturating_sub(10)] {
                file.read_at(&mut buf, offset).map_err(said)?;
            }
        }
        _ => {}
    }
    Ok(())
}
