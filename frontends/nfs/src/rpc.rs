//! ONC RPC (RFC 5531): the header of a call, and of its reply.

use std::sync::Arc;

use crate::xdr::{Decoded, Garbage, Reader, Writer};

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
/// The longest credential or verifier.
const MOST_AUTH: usize = 400;

const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;

/// What a call begins with.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    /// The client's number of the call.
    pub(crate) xid: u32,
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: u32,
    pub(crate) user: User,
    pub(crate) args: &'a [u8],
}

/// The user whom a client names; it proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum User {
    /// AUTH_NONE.
    Nobody,
    /// AUTH_SYS.
    Ids {
        uid: u32,
        gid: u32,
        groups: Arc<[u32]>,
    },
}

/// A call that is answered at once, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is no call: the client does not speak this protocol.
    NotACall,
    /// The answer says why.
    Denied { xid: u32, why: Denial },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denial {
    /// Another version of RPC.
    Version,
    /// The credential is malformed.
    BadCredential,
    /// A kind of credential that is not known here.
    UnknownCredential,
    /// The client may not call.
    TooWeak,
}

/// How a call that was accepted has ended, apart from the result of its procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    Success,
    UnknownProgram,
    /// The only version that is known of the program.
    OtherVersion(u32),
    UnknownProcedure,
    Garbage,
    SystemError,
}

impl<'a> Call<'a> {
    /// Reads the header of a record.
    ///
    /// # Errors
    /// See [`Refused`].
    pub(crate) fn read(record: &'a [u8]) -> Result<Call<'a>, Refused> {
        let mut reader = Reader::new(record);
        let (Ok(xid), Ok(CALL)) = (reader.u32(), reader.u32()) else {
            return Err(Refused::NotACall);
        };
        let deny = |why| Refused::Denied { xid, why };
        match reader.u32() {
            Ok(RPC_VERSION) => {}
            Ok(_) => return Err(deny(Denial::Version)),
            Err(Garbage) => return Err(Refused::NotACall),
        }
        let mut numbers = || Ok([reader.u32()?, reader.u32()?, reader.u32()?]);
        let [program, version, procedure] = numbers().map_err(|Garbage| Refused::NotACall)?;
        let auth = auth(&mut reader).map_err(|Garbage| deny(Denial::BadCredential))?;
        let user = match auth {
            (AUTH_NONE, _) => User::Nobody,
            (AUTH_SYS, body) => ids(body).map_err(|Garbage| deny(Denial::BadCredential))?,
            _ => return Err(deny(Denial::UnknownCredential)),
        };
        Ok(Call {
            xid,
            program,
            version,
            procedure,
            user,
            args: reader.rest(),
        })
    }
}

/// The flavor and body of the credential. The verifier behind it says nothing in either flavor.
fn auth<'a>(reader: &mut Reader<'a>) -> Decoded<(u32, &'a [u8])> {
    let credential = (reader.u32()?, reader.opaque(MOST_AUTH)?);
    let _verifier = (reader.u32()?, reader.opaque(MOST_AUTH)?);
    Ok(credential)
}

/// The body of AUTH_SYS.
fn ids(body: &[u8]) -> Decoded<User> {
    let mut reader = Reader::new(body);
    let _stamp = reader.u32()?;
    let _machine = reader.opaque(255)?;
    let (uid, gid, count) = (reader.u32()?, reader.u32()?, reader.u32()?);
    if count > 16 {
        return Err(Garbage);
    }
    let groups: Decoded<Arc<[u32]>> = (0..count).map(|_| reader.u32()).collect();
    let groups = groups?;
    reader.end()?;
    Ok(User::Ids { uid, gid, groups })
}

/// Begins a reply to a call that was accepted: room for the record's mark, and the header.
pub(crate) fn reply(xid: u32, accepted: Accepted) -> Writer {
    let mut out = Writer::default();
    out.bytes.reserve(256);
    for number in [0, xid, REPLY, 0, AUTH_NONE, 0] {
        out.u32(number);
    }
    match accepted {
        Accepted::Success => out.u32(0),
        Accepted::UnknownProgram => out.u32(1),
        Accepted::OtherVersion(only) => {
            for number in [2, only, only] {
                out.u32(number);
            }
        }
        Accepted::UnknownProcedure => out.u32(3),
        Accepted::Garbage => out.u32(4),
        Accepted::SystemError => out.u32(5),
    }
    out
}

/// The reply to a call that was not accepted.
pub(crate) fn denied(xid: u32, why: Denial) -> Writer {
    let mut out = Writer::default();
    for number in [0, xid, REPLY, 1] {
        out.u32(number);
    }
    let numbers: &[u32] = match why {
        Denial::Version => &[0, RPC_VERSION, RPC_VERSION],
        Denial::BadCredential => &[1, 1],
        Denial::UnknownCredential => &[1, 2],
        Denial::TooWeak => &[1, 5],
    };
    numbers.iter().for_each(|number| out.u32(*number));
    out
}

/// Writes the mark of a record of one fragment before a reply that is complete.
pub(crate) fn finish(mut reply: Writer) -> Vec<u8> {
    let len = (reply.len() - 4) as u32;
    reply.put_u32(0, len | 1 << 31);
    reply.bytes
}
