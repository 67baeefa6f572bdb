//! A web server as small as Prometheus needs it: `GET`, one answer, the end.
//!
//! A client has [`PATIENCE`] for its whole request and [`LONGEST`] bytes for it. At most
//! [`AT_ONCE`] connections are open, each on a thread of its own; one more cuts the oldest, which
//! has had the most time. So idle connections hold up no other, and no client gets at the mount by this.
//!
//! These bounds are why this is our own code. tiny_http 0.12 accepts connections itself, without a
//! time limit for a request or a bound on connections: a client that sends a byte a minute keeps a
//! thread and a descriptor. The servers that have both bring an async runtime.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Failure, Words};
use crate::runtime::{self, Bound};

const PATIENCE: Duration = Duration::from_secs(5);
const LONGEST: usize = 8 << 10;
const AT_ONCE: usize = 16;

/// Where to listen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            let path = std::path::absolute(path).map_err(|err| err.to_string())?;
            return Ok(Address::Unix(path));
        }
        let address = text.parse().map(Address::Tcp);
        address.map_err(|_| match instead(text) {
            Some(instead) => format!("{text:?} is neither IP:PORT nor unix:PATH: say {instead}"),
            None => format!("{text:?} is neither IP:PORT nor unix:PATH"),
        })
    }
}

/// Suggests an address for one without a host number. Names are not looked up.
fn instead(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':').unwrap_or(("localhost", text));
    let port: u16 = port.parse().ok()?;
    match host {
        "localhost" => Some(format!("127.0.0.1:{port}")),
        "" | "*" => Some(format!(
            "0.0.0.0:{port} or [::]:{port} for all networks, 127.0.0.1:{port} for this host"
        )),
        // IPv6 without its brackets.
        _ if host.parse::<std::net::Ipv6Addr>().is_ok() => Some(format!("[{host}]:{port}")),
        _ => Some("the host's number: names are not looked up".to_owned()),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "http://{address}/metrics"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// Listens there; a name that goes when we do comes with it.
    pub(crate) fn bind(&self) -> Result<(Listener, Option<Bound>), Failure> {
        let bound = match self {
            Address::Tcp(address) => TcpListener::bind(address)
                .and_then(|listener| Ok((listener.local_addr()?, listener)))
                .map(|(address, listener)| (Listener::tcp(address, listener), None)),
            Address::Unix(path) => runtime::bind(path)
                .map(|(listener, bound)| (Listener::unix(path, listener), Some(bound))),
        };
        bound
            .map_err(|err| Failure::error(format_args!("cannot listen at {self}: {}", Words(&err))))
    }
}

/// A listening socket.
pub(crate) struct Listener {
    /// Where, with the port that was found.
    pub(crate) address: Address,
    accept: Box<Accept>,
}

type Accept = dyn Fn() -> io::Result<Stream> + Send;

/// A connection of either kind. The standard library's type makes the same system calls for both:
/// only its questions for addresses, which nothing here asks, depend on the kind.
type Stream = TcpStream;

impl Listener {
    fn tcp(address: SocketAddr, listener: TcpListener) -> Listener {
        Listener {
            address: Address::Tcp(address),
            accept: Box::new(move || Ok(listener.accept()?.0)),
        }
    }

    pub(crate) fn unix(path: &Path, listener: UnixListener) -> Listener {
        Listener {
            address: Address::Unix(path.to_owned()),
            accept: Box::new(move || Ok(OwnedFd::from(listener.accept()?.0).into())),
        }
    }
}

/// Returns the page for a path and a query, as its type and text, or nothing.
pub(crate) type Pages = dyn Fn(&str, &str) -> Option<(&'static str, String)> + Send + Sync;

/// Answers from now on, until the process ends.
pub(crate) fn serve(listener: Listener, pages: Arc<Pages>) -> io::Result<()> {
    let open = Arc::new(Open::default());
    let accept = move || {
        loop {
            let Ok(stream) = (listener.accept)() else {
                // Out of descriptors, most likely: not for ever.
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            let admitted = open.admit(stream);
            let pages = pages.clone();
            // Without a thread, the connection is closed.
            let _ = thread::Builder::new()
                .name("metrics".to_owned())
                .stack_size(128 << 10)
                .spawn(move || {
                    // A client that closes before it is answered needs no report.
                    let _ = answer(&admitted.stream, &*pages);
                });
        }
    };
    let thread = thread::Builder::new().name("metrics".to_owned());
    thread.spawn(accept).map(drop)
}

/// The connections that are open, the oldest first.
#[derive(Default)]
struct Open {
    all: Mutex<VecDeque<Arc<Stream>>>,
    threads: Arc<()>,
}

/// A connection that is open until this is dropped.
struct Admitted {
    open: Arc<Open>,
    stream: Arc<Stream>,
    _thread: Arc<()>,
}

impl Open {
    /// Takes a connection in, and cuts the oldest if there are too many.
    fn admit(self: &Arc<Open>, stream: Stream) -> Admitted {
        // Threads whose connections were cut end on their own, as fast as they get a processor.
        while Arc::strong_count(&self.threads) > 2 * AT_ONCE {
            thread::sleep(Duration::from_millis(1));
        }
        let stream = Arc::new(stream);
        let mut all = self.all();
        if all.len() == AT_ONCE
            && let Some(oldest) = all.pop_front()
        {
            // Its thread ends; if it fails, the client was faster.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        all.push_back(stream.clone());
        Admitted {
            open: self.clone(),
            stream,
            _thread: self.threads.clone(),
        }
    }

    fn all(&self) -> MutexGuard<'_, VecDeque<Arc<Stream>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let is_another = |open: &Arc<Stream>| !Arc::ptr_eq(open, &self.stream);
        self.open.all().retain(is_another);
    }
}

fn answer(mut stream: &Stream, pages: &Pages) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let reply = match read_head(stream, deadline) {
        Ok(head) => reply(&head, pages),
        Err(err) if err.kind() == ErrorKind::InvalidData => {
            Reply::error("431 Request Header Fields Too Large")
        }
        Err(err) if is_timeout(&err) => Reply::error("408 Request Timeout"),
        Err(err) => return Err(err),
    };
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(reply.to_string().as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    // Closing with unread data would discard the answer, too.
    let mut rest = [0; 4 << 10];
    for _ in 0..LONGEST {
        if read_until(stream, deadline, &mut rest)? == 0 {
            break;
        }
    }
    Ok(())
}

/// All up to the empty line.
fn read_head(stream: &Stream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut part = [0; 1 << 10];
    loop {
        match read_until(stream, deadline, &mut part) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => head.extend_from_slice(&part[..len]),
            Err(err) if err.kind() == ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
        let is_whole = |end: &[u8]| head.windows(end.len()).any(|window| window == end);
        if is_whole(b"\r\n\r\n") || is_whole(b"\n\n") {
            return Ok(head);
        }
        if head.len() > LONGEST {
            return Err(ErrorKind::InvalidData.into());
        }
    }
}

/// Reads what has arrived; waits for it until `deadline`.
fn read_until(mut stream: &Stream, deadline: Instant, part: &mut [u8]) -> io::Result<usize> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(left))?;
    stream.read(part)
}

fn is_timeout(err: &io::Error) -> bool {
    matches!(err.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

fn reply(head: &[u8], pages: &Pages) -> Reply {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line.trim_ascii_end());
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["GET", target, version] if version.starts_with("HTTP/1.") => {
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            match pages(path, query) {
                Some((kind, body)) => Reply {
                    status: "200 OK",
                    kind,
                    body,
                },
                None => Reply::error("404 Not Found"),
            }
        }
        [_, _, version] if version.starts_with("HTTP/1.") => Reply::error("405 Method Not Allowed"),
        _ => Reply::error("400 Bad Request"),
    }
}

struct Reply {
    status: &'static str,
    kind: &'static str,
    body: String,
}

impl Reply {
    fn error(status: &'static str) -> Reply {
        Reply {
            status,
            kind: "text/plain; charset=utf-8",
            body: format!("{status}\n"),
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reply { status, kind, body } = self;
        write!(f, "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n")?;
        if status.starts_with("405") {
            f.write_str("Allow: GET\r\n")?;
        }
        let len = body.len();
        write!(
            f,
            "Content-Length: {len}\r\nConnection: close\r\n\r\n{body}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(head: &str) -> String {
        let pages =
            |path: &str, _: &str| (path == "/metrics").then(|| ("text/plain", "1\n".to_owned()));
        let reply = reply(head.as_bytes(), &pages);
        format!("{} {}", reply.status, reply.body.trim_end())
    }

    #[test]
    fn only_a_get_of_what_is_there_is_answered() {
        assert_eq!(said("GET /metrics HTTP/1.1\r\n\r\n"), "200 OK 1");
        assert_eq!(said("GET /metrics?x=1 HTTP/1.0\r\n\r\n"), "200 OK 1");
        for (head, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("GET /metrics\r\n\r\n", "400"),
            ("\r\n\r\n", "400"),
            ("GET /metrics HTTP/2\r\n\r\n", "400"),
            ("\u{0}\u{1} \u{2} \u{3}\n\n", "400"),
        ] {
            assert!(said(head).starts_with(status), "{head:?}: {}", said(head));
        }
    }

    #[test]
    fn addresses_are_numbers_or_paths() {
        assert!("127.0.0.1:0".parse::<Address>().is_ok());
        assert!("[::1]:9100".parse::<Address>().is_ok());
        let unix = "unix:/run/x.sock".parse();
        assert_eq!(unix, Ok(Address::Unix("/run/x.sock".into())));
        for (wrong, said) in [
            ("", "\"\" is neither IP:PORT nor unix:PATH"),
            ("unix:", "neither IP:PORT nor unix:PATH"),
            ("localhost:http", "neither IP:PORT nor unix:PATH"),
            ("localhost:9100", "unix:PATH: say 127.0.0.1:9100"),
            ("9100", "unix:PATH: say 127.0.0.1:9100"),
            (":9100", "say 0.0.0.0:9100 or [::]:9100 for all networks"),
            ("::1:9100", "say [::1]:9100"),
            (
                "example.org:9100",
                "say the host's number: names are not looked up",
            ),
        ] {
            let err = wrong.parse::<Address>().unwrap_err();
            assert!(err.contains(said), "{wrong}: {err}");
        }
    }
}
