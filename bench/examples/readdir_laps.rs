//! One directory listed again and again through `File::fill`, for a profiler:
//! `valgrind --tool=callgrind target/release/examples/readdir_laps memfs 100000 20`, or `host DIR`
//! in place of `memfs` with the number of listings. With `first`, each listing builds the cache.

use rcuwalk::{Budget, Credentials, Entries, FileSystem, Freshness, OpenFlags, Vfs};
use rcuwalk_hostfs::HostFs;
use rcuwalk_memfs::MemFs;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["memfs", entries, laps] => {
            let vfs = vfs(MemFs::new(), 0);
            let ctx = vfs.context(Credentials::root());
            for n in 0..number(entries) {
                vfs.create(&ctx, format!("f{n:07}"), 0o644).expect("made");
            }
            (0..number(laps)).for_each(|_| list(&vfs));
        }
        ["host", dir, laps] => {
            let fs = HostFs::new(dir).expect("a directory");
            let vfs = vfs(fs.with_freshness(Freshness::Always), 1 << 30);
            (0..number(laps)).for_each(|_| list(&vfs));
        }
        ["first", dir, laps, room] => {
            let fs = HostFs::new(dir).expect("a directory");
            let vfs = vfs(fs.with_freshness(Freshness::Always), number(room) as usize);
            for _ in 0..number(laps) {
                let began = std::time::Instant::now();
                list(&vfs);
                println!("{:?}", began.elapsed());
                vfs.drop_caches();
            }
        }
        _ => eprintln!("memfs ENTRIES LAPS | host DIR LAPS | first DIR LAPS ROOM"),
    }
}

fn vfs(fs: impl FileSystem, room: usize) -> Vfs {
    Vfs::with_budget(fs, Budget::default().listings(room)).expect("a mount")
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

fn list(vfs: &Vfs) {
    let ctx = vfs.context(Credentials::root());
    let dir = vfs.open(&ctx, "/", OpenFlags::READ).expect("open");
    let (mut buf, mut position, mut sum) = (vec![0; 32 << 10], 0, 0);
    loop {
        let filled = dir.fill(position, &mut buf).expect("listed");
        if filled == 0 {
            break;
        }
        for entry in Entries::new(&buf[..filled]) {
            position = entry.next;
            sum ^= entry.ino;
        }
    }
    std::hint::black_box(sum);
}
