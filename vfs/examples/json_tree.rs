//! A back end of one's own: a JSON document as a read-only tree, where objects are directories.
//! `cargo run -p rcuwalk --example json_tree` lists it and reads a value by its path.

use rcuwalk::{
    At, Attr, Caller, Credentials, Emit, Error, FileHandle, FileSystem, FileType, Iget, Inode,
    InodeFill, InodeKey, InodeRef, Name, OpenFlags, RawEntry, Result, SuperBlock, Vfs,
};
use serde_json::{Value, json};

/// The nodes of the document. A node's inode number is its index and one.
pub(crate) struct JsonTree(Vec<Node>);

#[rustfmt::skip]
struct Node { attr: Attr, children: Vec<(String, usize)>, contents: Vec<u8> }

impl JsonTree {
    pub(crate) fn new(document: &Value) -> JsonTree {
        let mut tree = JsonTree(Vec::new());
        tree.add(document);
        tree
    }

    fn add(&mut self, value: &Value) -> usize {
        let index = self.0.len();
        let (kind, mode, contents) = match value {
            Value::Object(_) => (FileType::Directory, 0o555, String::new()),
            Value::String(text) => (FileType::Regular, 0o444, text.clone()),
            other => (FileType::Regular, 0o444, other.to_string()),
        };
        self.0.push(Node {
            attr: Attr::new(index as u64 + 1, kind, mode).size(contents.len() as u64),
            children: Vec::new(),
            contents: contents.into_bytes(),
        });
        for (name, value) in value.as_object().into_iter().flatten() {
            // A key that is not a file name (`a/b`, `..`) could not be looked up.
            if Name::new(name.as_bytes()).is_ok() {
                let child = self.add(value);
                self.0[index].children.push((name.clone(), child));
            }
        }
        index
    }

    /// The inode of a node: from the cache, or filled in.
    fn iget(&self, sb: &SuperBlock, index: usize) -> Result<InodeRef> {
        let attr = self.0[index].attr;
        match sb.iget(InodeKey::new(attr.ino))? {
            Iget::Cached(inode) => Ok(inode),
            Iget::New(new) => Ok(new.init(InodeFill::new(attr))),
        }
    }

    fn node(&self, inode: &Inode) -> &Node {
        &self.0[inode.attr().ino as usize - 1]
    }
}

impl FileSystem for JsonTree {
    fn name(&self) -> &str {
        "json"
    }

    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        self.iget(sb, 0)
    }

    fn lookup(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        let mut children = self.node(dir).children.iter();
        let found = children.find(|(known, _)| known.as_bytes() == name.as_bytes());
        found.map(|(_, index)| self.iget(sb, *index)).transpose()
    }

    fn read_link(&self, _: &SuperBlock, _: &Inode) -> Result<Box<[u8]>> {
        Err(Error::Invalid)
    }

    fn read_dir(&self, _: &SuperBlock, dir: &Inode, from: u64, emit: &mut dyn Emit) -> Result<()> {
        for ((name, index), next) in self.node(dir).children.iter().zip(1..) {
            #[rustfmt::skip]
            let entry = RawEntry { name: name.as_bytes(), ino: *index as u64 + 1, kind: None, next };
            if next > from && emit.entry(entry).is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn open(&self, _: &Caller<'_>, at: &At<'_>, _: OpenFlags) -> Result<Box<dyn FileHandle>> {
        Ok(Box::new(Contents(self.node(at.inode).contents.clone())))
    }

    fn read_only(&self) -> bool {
        true
    }
}

struct Contents(Vec<u8>);
impl FileHandle for Contents {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let rest = self.0.get(offset as usize..).unwrap_or_default();
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
}

#[allow(dead_code, reason = "`mount_json` uses only the back end")]
fn main() -> Result<()> {
    let vfs = Vfs::new(JsonTree::new(&json!({"name": "rcuwalk", "in": {}})))?;
    let me = vfs.context(Credentials::user(1000, 1000));
    for entry in vfs.read_dir(&me, "/")? {
        println!("/{}", String::from_utf8_lossy(&entry?.name));
    }
    let mut contents = [0; 64];
    let len = (vfs.open(&me, "/in/../name", OpenFlags::READ)?).read_at(&mut contents, 0)?;
    println!("/name is {}", String::from_utf8_lossy(&contents[..len]));
    Ok(())
}
