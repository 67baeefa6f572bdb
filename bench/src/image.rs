//! draft
pub mod seen; pub mod mount; mod make; mod kernel;
use std::path::Path; use std::sync::atomic::AtomicBool; use std::ops::ControlFlow;
use rcuwalk_ext4::{Ext4,Order,Checksums}; use rcuwalk::scan::*;
use seen::*;
#[derive(Default)] struct V{ seen: Seen, dir: Vec<u8>, hash: Option<DirHash>, problems: u64 }
impl Visitor for V { fn entry(&mut self, e:&ScanEntry<'_>)->ControlFlow<()> { if e.name.is_empty() {return ControlFlow::Continue(())}
  if self.hash.is_none() || self.dir != e.dir { self.dir.clear(); self.dir.extend_from_slice(e.dir); self.hash=Some(DirHash::of(e.dir)); }
  self.seen.add(self.hash.unwrap(), e.name, &Facts::from(e.attr)); ControlFlow::Continue(()) }
  fn problem(&mut self,p:&[u8],e:&dyn std::error::Error)->ControlFlow<()> { self.problems+=1; eprintln!("{} {e}",p.escape_ascii()); ControlFlow::Continue(()) } }
pub fn draft(path:&Path, shape: crate::walktrees::Shape, what:&str) -> std::io::Result<()> {
  let stop=AtomicBool::new(false);
  if what=="kernel" {
  mount::own_mounts()?;
  if !path.exists() { let t=std::time::Instant::now(); make::make(path,shape,&stop)?; println!("made {:?}",t.elapsed()); }
  let m=mount::LoopMount::new(path,"ro,noatime")?;
  kernel::walk(m.path(),20,&stop)?;
  for threads in [20,2,20,2] { kernel::drop_caches(kernel::Drop::Inodes)?;
   let t=std::time::Instant::now(); let s=kernel::walk(m.path(),threads,&stop)?; let e=t.elapsed(); println!("{threads} {:?} {:?} {}",e,s,s.entries as f64/e.as_secs_f64()); }
  } else if what=="scan" {
   for checks in [Checksums::Always,Checksums::Never] { for order in [Order::Tree,Order::Inode] { for threads in [1,2,2] {
    let t=std::time::Instant::now(); let img=Ext4::options().checksums(checks).open(path).unwrap();
    let (vs,end)=img.scan().order(order).run(&stop,(0..threads).map(|_|V::default()).collect());
    let s=vs.iter().fold(Seen::default(),|a,v|a.and(v.seen)); let e=t.elapsed();
    println!("{checks:?} {order:?} {threads} {:?} {:?} {end:?} {}",e,s,s.entries as f64/e.as_secs_f64());
   }}}
  } else {
   for checks in [Checksums::Always,Checksums::Never] { for threads in std::env::args().nth(2).map_or(vec![1,2,20,20], |t| vec![t.parse().unwrap();3]) {
   let t=std::time::Instant::now(); let img=Ext4::options().checksums(checks).open(path).unwrap();
   let s=vfs(img,threads); let e=t.elapsed();
   println!("{checks:?} vfs {threads} {:?} {:?} {}",e,s,s.entries as f64/e.as_secs_f64());
   }}
  }
  Ok(())
}
fn vfs(img: Ext4, threads: usize)->Seen {
  use rcuwalk::*; use std::sync::Mutex;
  let budget=Budget{dentries:4_000_000,inodes:4_000_000,bytes:4<<30,..Budget::default()};
  let vfs=Vfs::with_budget(img,budget).unwrap();
  fn dir(vfs:&Vfs,here:&Context,hash:DirHash,seen:&mut Seen,below:&mut Vec<(Context,DirHash)>) {
    for e in vfs.read_dir(here,".").unwrap() { let e=e.unwrap(); let a=vfs.stat(here,&*e.name,LookupFlags::default()).unwrap();
      seen.add(hash,&e.name,&Facts::from(&a));
      if a.kind==FileType::Directory { let d=vfs.lookup(here,&*e.name,LookupFlags::default()).unwrap(); below.push((here.clone().with_cwd(d),hash.child(&e.name))); } }
  }
  let ctx=vfs.context(Credentials::root()); let mut seen=Seen::default(); let mut below=vec![];
  dir(&vfs,&ctx,DirHash::ROOT,&mut seen,&mut below);
  let q=Mutex::new(below);
  std::thread::scope(|s|{ let ts:Vec<_>=(0..threads).map(|_|s.spawn(||{ let mut seen=Seen::default(); loop { let Some((c,h))=q.lock().unwrap().pop() else {return seen};
     let mut stack=vec![(c,h)]; while let Some((c,h))=stack.pop() { dir(&vfs,&c,h,&mut seen,&mut stack); } } })).collect();
   ts.into_iter().fold(seen,|a,t|a.and(t.join().unwrap())) })
}
