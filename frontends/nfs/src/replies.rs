//! Replies to calls that change something, kept for clients that ask again.
//!
//! NFS-3: such a call is executed once, however often its client sends it, while its reply is kept.
//! A client whose connection breaks sends its calls again by the next one. A second REMOVE would
//! say "no such file", a second RENAME could move another file.
//!
//! A call is known again by its client's address, its number, procedure, user and arguments; of long
//! arguments, by their length, beginning and end. Clients count their calls, so that two calls of
//! one number are never the same call but for that. Each address has [`MOST`] replies of its own, so
//! that no other one can push them out. A call that is still being executed is answered by the
//! connection that asked last as well.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::rpc::Call;

/// Replies that are kept for each address.
const MOST: usize = 1024;
/// Addresses that have any.
const MOST_CLIENTS: usize = 64;
/// Of long arguments, this many bytes count at the beginning and at the end.
const ENDS: usize = 512;

/// Identifies a call of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(u64, u64);

/// The state of a call that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// The caller executes it, and then [finishes](Replies::finish) or [gives it up](Replies::give_up).
    New,
    /// It is being executed: its reply goes to the connection that has just asked, too.
    Running,
    /// Its reply.
    Done(Vec<u8>),
}

/// The replies that are kept. `C` is a connection.
pub(crate) struct Replies<C> {
    hash: [RandomState; 2],
    clients: Mutex<HashMap<IpAddr, Client<C>>>,
    /// Counts calls, to know which client has been silent for longest.
    clock: std::sync::atomic::AtomicU64,
}

struct Client<C> {
    calls: HashMap<Key, State<C>>,
    order: VecDeque<Key>,
    last_call: u64,
    /// How many calls are running.
    running: usize,
}

enum State<C> {
    Running(Option<C>),
    Done(Vec<u8>),
}

impl<C> Default for Replies<C> {
    fn default() -> Self {
        Replies {
            hash: [RandomState::new(), RandomState::new()],
            clients: Mutex::default(),
            clock: std::sync::atomic::AtomicU64::new(0),
        }
    }
}

impl<C> Replies<C> {
    /// The key of a call.
    pub(crate) fn key(&self, call: &Call<'_>) -> Key {
        let hash = |state: &RandomState| {
            let mut hasher = state.build_hasher();
            (call.xid, call.program, call.version, call.procedure).hash(&mut hasher);
            (&call.user, call.args.len()).hash(&mut hasher);
            let len = call.args.len();
            match len <= 2 * ENDS {
                true => hasher.write(call.args),
                false => {
                    hasher.write(&call.args[..ENDS]);
                    hasher.write(&call.args[len - ENDS..]);
                }
            }
            hasher.finish()
        };
        Key(hash(&self.hash[0]), hash(&self.hash[1]))
    }

    /// A call has arrived. `again` makes the connection to which the reply goes, too, if it is
    /// running.
    pub(crate) fn begin(&self, client: IpAddr, key: Key, again: impl FnOnce() -> C) -> Begun {
        let now = self
            .clock
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut clients = self.clients();
        while clients.len() >= MOST_CLIENTS && !clients.contains_key(&client) {
            // Calls that are running stay: there are no more of them than threads.
            let idle = clients.iter().filter(|(_, client)| client.running == 0);
            let oldest = idle.min_by_key(|(_, client)| client.last_call);
            let Some(oldest) = oldest.map(|(address, _)| *address) else {
                break;
            };
            clients.remove(&oldest);
        }
        let client = clients.entry(client).or_insert_with(|| Client {
            calls: HashMap::new(),
            order: VecDeque::new(),
            last_call: now,
            running: 0,
        });
        client.last_call = now;
        match client.calls.entry(key) {
            Entry::Occupied(mut known) => match known.get_mut() {
                State::Done(reply) => return Begun::Done(reply.clone()),
                State::Running(waiting) => {
                    *waiting = Some(again());
                    return Begun::Running;
                }
            },
            Entry::Vacant(new) => new.insert(State::Running(None)),
        };
        client.order.push_back(key);
        client.running += 1;
        // Those that are running stay here, too.
        for _ in 0..client.order.len().saturating_sub(MOST) {
            let Some(oldest) = client.order.pop_front() else {
                break;
            };
            match client.calls.get(&oldest) {
                Some(State::Running(_)) => client.order.push_back(oldest),
                _ => drop(client.calls.remove(&oldest)),
            }
        }
        Begun::New
    }

    /// Keeps the reply of a call that was begun. Returns the connection that has asked again
    /// meanwhile.
    pub(crate) fn finish(&self, client: IpAddr, key: Key, reply: &[u8]) -> Option<C> {
        let mut clients = self.clients();
        let client = clients.get_mut(&client)?;
        let state = client.calls.get_mut(&key)?;
        match std::mem::replace(state, State::Done(reply.to_vec())) {
            State::Running(waiting) => {
                client.running -= 1;
                waiting
            }
            State::Done(_) => None,
        }
    }

    /// Forgets a call that was begun, and has changed nothing.
    pub(crate) fn give_up(&self, client: IpAddr, key: Key) -> Option<C> {
        let mut clients = self.clients();
        let client = clients.get_mut(&client)?;
        let state = client.calls.remove(&key);
        client.order.retain(|other| *other != key);
        match state {
            Some(State::Running(waiting)) => {
                client.running -= 1;
                waiting
            }
            _ => None,
        }
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<IpAddr, Client<C>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::User;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn call(xid: u32, args: &[u8]) -> Call<'_> {
        Call {
            xid,
            program: 100_003,
            version: 3,
            procedure: 12,
            user: User::Nobody,
            args,
        }
    }

    /// NFS-3: a call is executed once; asked again, it has the same reply.
    #[test]
    fn a_call_that_comes_again_is_known() {
        let replies = Replies::<u8>::default();
        let key = replies.key(&call(1, b"remove this"));
        let begin = |key| replies.begin(CLIENT, key, || 9);
        assert_eq!(begin(key), Begun::New);
        assert_eq!(begin(key), Begun::Running, "NFS-3");
        assert_eq!(replies.finish(CLIENT, key, b"done"), Some(9));
        assert_eq!(begin(key), Begun::Done(b"done".to_vec()), "NFS-3");
        for other in [
            call(2, b"remove this"),
            call(1, b"remove that"),
            Call {
                procedure: 13,
                ..call(1, b"remove this")
            },
        ] {
            assert_eq!(begin(replies.key(&other)), Begun::New, "{other:?}");
        }
        let long = vec![7; 4 * ENDS];
        let mut other = long.clone();
        *other.last_mut().unwrap() = 8;
        assert_ne!(replies.key(&call(1, &long)), replies.key(&call(1, &other)));
        assert_ne!(
            replies.key(&call(1, &long)),
            replies.key(&call(1, &long[1..]))
        );
    }

    #[test]
    fn a_call_that_was_given_up_is_executed() {
        let replies = Replies::<u8>::default();
        let key = replies.key(&call(1, b""));
        assert_eq!(replies.begin(CLIENT, key, || 1), Begun::New);
        assert_eq!(replies.give_up(CLIENT, key), None);
        assert_eq!(replies.begin(CLIENT, key, || 1), Begun::New);
    }

    /// NFS-4: replies are few, and those of one client are not pushed out by another.
    #[test]
    fn replies_are_bounded() {
        let replies = Replies::<u8>::default();
        let other = |n: u32| IpAddr::from(n.to_be_bytes());
        let first = replies.key(&call(0, b""));
        let running = replies.key(&call(u32::MAX, b""));
        replies.begin(CLIENT, first, || 0);
        replies.finish(CLIENT, first, b"first");
        replies.begin(CLIENT, running, || 0);
        for xid in 1..10 * MOST as u32 {
            let key = replies.key(&call(xid, b""));
            assert_eq!(replies.begin(other(1), key, || 0), Begun::New);
            replies.finish(other(1), key, b"");
        }
        let kept = |client| {
            let clients = replies.clients();
            let client = &clients[&client];
            (client.calls.len(), client.order.len())
        };
        assert_eq!(kept(other(1)), (MOST, MOST), "NFS-4");
        let begun = replies.begin(CLIENT, first, || 0);
        assert_eq!(begun, Begun::Done(b"first".to_vec()), "NFS-4");
        for xid in 1..2 * MOST as u32 {
            let key = replies.key(&call(xid, b""));
            replies.begin(CLIENT, key, || 0);
            replies.finish(CLIENT, key, b"");
        }
        assert_eq!(
            replies.begin(CLIENT, running, || 0),
            Begun::Running,
            "NFS-3"
        );
        for n in 1..1000 {
            replies.begin(other(n), first, || 0);
        }
        // None of these has ended: all of them stay.
        assert_eq!(replies.clients().len(), 1000, "NFS-3");
        for n in 1..1000 {
            replies.finish(other(n), first, b"");
        }
        for n in 0..2000 {
            let key = replies.key(&call(n, b"late"));
            replies.begin(other(5000), key, || 0);
            replies.finish(other(5000), key, b"");
            replies.begin(other(6000 + n), key, || 0);
            replies.finish(other(6000 + n), key, b"");
        }
        assert_eq!(replies.clients().len(), MOST_CLIENTS, "NFS-4");
        assert_eq!(
            replies.begin(CLIENT, running, || 0),
            Begun::Running,
            "NFS-3"
        );
    }
}
