//! The VFS under an async runtime: first from the caches, which never blocks, and on a blocking
//! thread where the caches do not have the answer.
//!
//! `cargo run -p rcuwalk --example tokio_cached`

use std::sync::Arc;

use rcuwalk::{Attr, Context, Credentials, Error, LookupFlags, Result, Vfs};
use rcuwalk_memfs::{MemFs, directory, file};

/// stat(2) for async callers. Cancelling it is safe: the blocking thread then fills the caches
/// for the next caller.
async fn stat(vfs: &Arc<Vfs>, ctx: &Context, path: &str) -> Result<Attr> {
    match vfs.stat(ctx, path, LookupFlags::FOLLOW | LookupFlags::CACHED) {
        Err(Error::WouldBlock) => {}
        answer => return answer,
    }
    let (vfs, ctx, path) = (vfs.clone(), ctx.clone(), path.to_owned());
    let blocking = move || vfs.stat(&ctx, path, LookupFlags::FOLLOW);
    let joined = tokio::task::spawn_blocking(blocking).await;
    joined.expect("the VFS does not panic")
}

#[tokio::main]
async fn main() -> Result<()> {
    let fs = MemFs::new();
    let srv = fs.add(fs.root(), b"srv", directory(0o755))?;
    for n in 0..100 {
        fs.add(srv, format!("file{n}").as_bytes(), file(0o644))?;
    }
    let vfs = Arc::new(Vfs::new(fs)?);
    let me = vfs.context(Credentials::user(1000, 1000));

    // A hundred tasks; the first round goes to blocking threads, the second one does not.
    for round in 0..2 {
        let tasks = (0..100).map(|n| {
            let (vfs, me) = (vfs.clone(), me.clone());
            tokio::spawn(async move { stat(&vfs, &me, &format!("/srv/file{n}")).await })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("the task does not panic")?;
        }
        println!(
            "round {round}: {} answers from the caches so far",
            vfs.statistics().hits
        );
    }
    Ok(())
}
