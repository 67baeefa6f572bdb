//! Names that are looked up together with one, after a listing.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rcuwalk::{
    At, Attr, Budget, Credentials, Emit, Error, FileHandle, FileSystem, FileType, Iget, Inode,
    InodeFill, InodeKey, InodeRef, LookupFlags, Name, RawEntry, Result, SuperBlock, Vfs,
};

/// One directory of numbered files, in blocks of so many.
struct Blocks { dirs: u64,
    files: u64,
    block: u64,
    calls: Arc<Calls>,
}

#[derive(Default)]
struct Calls {
    alone: AtomicU64,
    around: AtomicU64,
}

impl Blocks {
    fn number(&self, name: Name<'_>) -> Option<u64> {
        let text = std::str::from_utf8(name.as_bytes()).ok()?;
        let number = text.strip_prefix("f")?.parse().ok()?;
        (number < self.files).then_some(number)
    }

    fn name(number: u64) -> String {
        format!("f{number}")
    }

    fn iget(sb: &SuperBlock, number: u64) -> Result<InodeRef> {
        Ok(match sb.iget(InodeKey::new(number))? {
            Iget::Cached(inode) => inode,
            Iget::New(new) => {
                let attr = Attr::new(number, FileType::Regular, 0o644);
                new.init(InodeFill::new(attr))
            }
        })
    }
}

impl FileSystem for Blocks {
    fn name(&self) -> &str {
        "blocks"
    }

    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        Ok(match sb.iget(InodeKey::new(1))? {
            Iget::Cached(inode) => inode,
            Iget::New(new) => new.init(InodeFill::new(Attr::new(1, FileType::Directory, 0o755))),
        })
    }

    fn lookup(&self, sb: &SuperBlock, _: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        self.calls.alone.fetch_add(1, Relaxed);
        let text=std::str::from_utf8(name.as_bytes()).unwrap(); let n:u64=text[1..].parse().unwrap(); if n>=self.dirs {return Ok(None)}
        let ino=2+n*(self.files+1);
        Ok(Some(match sb.iget(InodeKey::new(ino))? { Iget::Cached(i)=>i, Iget::New(new)=>new.init(InodeFill::new(Attr::new(ino,FileType::Directory,0o755))) }))
    }

    fn looks_around(&self) -> bool {
        true
    }

    fn lookup_around(
        &self,
        sb: &SuperBlock,
        dir: &Inode,
        name: Name<'_>,
        around: &mut dyn FnMut(Name<'_>, InodeRef) -> ControlFlow<()>,
    ) -> Result<Option<InodeRef>> {
        self.calls.around.fetch_add(1, Relaxed);
        let Some(number) = self.number(name) else {
            return Ok(None);
        };
        let base=dir.inode_key().ino+1;
        let first = number - number % self.block;
        for other in first..self.files.min(first + self.block) {
            let text = Self::name(other);
            sb.prefetch(InodeKey::new(base+other+8));
            let inode = Self::iget(sb, base+other)?;
            if around(Name::new(text.as_bytes())?, inode).is_break() {
                break;
            }
        }
        Self::iget(sb, base+number).map(Some)
    }

    fn read_link(&self, _: &SuperBlock, _: &Inode) -> Result<Box<[u8]>> {
        Err(Error::Invalid)
    }

    fn read_dir(
        &self,
        _: &SuperBlock,
        dir: &Inode,
        from: u64,
        emit: &mut dyn Emit,
    ) -> Result<()> {
        for number in from..self.files {
            let name = Self::name(number);
            let entry = RawEntry {
                name: name.as_bytes(),
                ino: dir.inode_key().ino+1+number,
                kind: Some(FileType::Regular),
                next: number + 1,
            };
            if emit.entry(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn open(&self, _: &SuperBlock, _: &At<'_>) -> Result<Box<dyn FileHandle>> {
        Err(Error::NotSupported)
    }
}


fn main() {
    let dirs=2000u64; let files=1000u64;
    for round in 0..6 {
    let threads: u64 = std::env::args().nth(1).map_or(2, |t| t.parse().unwrap());
    let calls = Arc::new(Calls::default());
    let budget=Budget{dentries:4_000_000,inodes:4_000_000,bytes:4<<30,..Budget::default()};
    let vfs=Vfs::with_budget(Blocks{dirs,files,block:250,calls:calls.clone()},budget).unwrap();
    let t=std::time::Instant::now();
    let next=AtomicU64::new(0);
    let sum=AtomicU64::new(0);
    std::thread::scope(|s|{ for _ in 0..threads { s.spawn(||{
        let ctx=vfs.context(Credentials::root());
        let mut total=0;
        loop { let d=next.fetch_add(1,Relaxed); if d>=dirs {break}
            let dir=vfs.lookup(&ctx,format!("/d{d}"),LookupFlags::default()).unwrap();
            let here=ctx.clone().with_cwd(dir);
            for e in vfs.read_dir(&here,".").unwrap() { let e=e.unwrap(); let a=vfs.stat(&here,&*e.name,LookupFlags::default()).unwrap(); assert_eq!(a.ino,e.ino); total+=a.size+1; }
        }
        sum.fetch_add(total,Relaxed);
    });}});
    let e=t.elapsed(); println!("{round} {:?} {:.3} M/s {}", e, (dirs*files) as f64/e.as_secs_f64()/1e6, sum.load(Relaxed));
    }
}
