//! Places where a tracer can listen: USDT probes of the provider `rcuwalk`.
//!
//! | probe          | arguments                                 | fires                     |
//! |----------------|-------------------------------------------|---------------------------|
//! | `iget`         | key hash, hit (0, 1), scheme, look (1, 2) | after each look           |
//! | `iget__insert` | key hash, creating (0, 1)                 | when an inode is inserted |
//! | `wait`         | key hash, why (0 New, 1 Freeing)          | before a lookup sleeps    |
//! | `evict`        | key hash                                  | when an inode leaves      |
//!
//! Without the feature `usdt`, and on other machines than x86-64, the functions below are
//! empty. With it, each call becomes a `nop`, and a note in the ELF section `.note.stapsdt`
//! with the address of the `nop` and the registers of its arguments. A tracer (bpftrace, perf,
//! SystemTap, gdb) has the kernel put a breakpoint in its place: `docs/tracing.md` shows how.
//!
//! The rule: without the feature, probes cost nothing; with it, a `nop` and the instructions
//! that put the arguments in registers. So the arguments are few and narrow. Constants are
//! numbers in the note. A value that only a tracer needs, such as the hash of an evicted key,
//! is a closure or an iterator, which is not called without the feature.

/// Which look for an inode it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The first: under RCU or the lock.
    First,
    /// The second: under the lock that the insertion happens under.
    Second,
}

/// The reason why a lookup sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until the inode is read in.
    New,
    /// Until it is gone.
    Freeing,
}

/// Whether there are any probes.
const BUILT_IN: bool = cfg!(all(feature = "usdt", target_arch = "x86_64", not(miri)));

/// A note of the form that SystemTap's `sys/sdt.h` has made common: provider, name, and
/// for each argument its size, `@`, and an operand as an assembler writes it.
#[cfg(all(feature = "usdt", target_arch = "x86_64", not(miri)))]
macro_rules! sdt {
    ($name:literal, $arguments:expr, $($value:ident = in($class:ident) $from:expr),+) => {
        // SAFETY: a `nop`; the rest of the text goes to sections that are not run.
        unsafe {
            std::arch::asm!(
                "990: nop",
                // `?`: if the linker keeps another crate's copy of this function, it keeps that
                // copy's note, too.
                r#".pushsection .note.stapsdt, "?", "note""#,
                ".balign 4",
                ".4byte 992f - 991f, 994f - 993f, 3",
                r#"991: .asciz "stapsdt""#,
                "992: .balign 4",
                // Where the `nop` is, what that is relative to, and no semaphore.
                "993: .8byte 990b, _.stapsdt.base, 0",
                r#".asciz "rcuwalk""#,
                concat!(".asciz \"", $name, "\""),
                concat!(".asciz \"", $arguments, "\""),
                "994: .balign 4",
                ".popsection",
                // The linker drops unused functions, but not their notes, which would then
                // point nowhere. This keeps the function.
                r#".pushsection .stapsdt.keep, "a?R", "progbits""#,
                ".4byte 990b - .",
                ".popsection",
                // One byte in the whole program: listeners learn from it how far the code
                // has been moved since the notes were written (prelink).
                ".ifndef _.stapsdt.base",
                r#".pushsection .stapsdt.base, "aGR", "progbits", .stapsdt.base, comdat"#,
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base: .space 1",
                ".size _.stapsdt.base, 1",
                ".popsection",
                ".endif",
                $($value = in($class) $from,)+
                // The note must call registers `%rax`.
                options(att_syntax, nomem, nostack, preserves_flags),
            )
        }
    };
}

#[cfg(not(all(feature = "usdt", target_arch = "x86_64", not(miri))))]
macro_rules! sdt {
    ($name:literal, $arguments:expr, $($value:ident = in($class:ident) $from:expr),+) => {
        if false {
            $(let _ = $from;)+
        }
    };
}

/// A look for an inode has found something, or nothing.
#[inline(always)]
pub fn iget(key: u64, hit: bool, scheme: u8, look: Look) {
    // Where the compiler knows `hit` and `look`, or has gone two ways for them anyway, they
    // cost nothing: in the note they are constants.
    macro_rules! looked {
        ($hit:literal, $look:literal) => {
            sdt!(
                "iget",
                concat!("8@{key} 8@$", $hit, " 1@{scheme} 8@$", $look),
                key = in(reg) key,
                scheme = in(reg_byte) scheme
            )
        };
    }
    match (hit, look) {
        (false, Look::First) => looked!(0, 1),
        (true, Look::First) => looked!(1, 1),
        (false, Look::Second) => looked!(0, 2),
        (true, Look::Second) => looked!(1, 2),
    }
}

/// An inode has been inserted: to be read in or, if `creating`, to be made.
#[inline(always)]
pub fn iget_insert(key: u64, creating: bool) {
    sdt!(
        "iget__insert",
        "8@{key} 1@{creating}",
        key = in(reg) key,
        creating = in(reg_byte) u8::from(creating)
    );
}

/// A lookup is about to sleep.
#[inline(always)]
pub fn wait(key: impl FnOnce() -> u64, why: Wait) {
    match why {
        Wait::New => sdt!("wait", "8@{key} 8@$0", key = in(reg) key()),
        Wait::Freeing => sdt!("wait", "8@{key} 8@$1", key = in(reg) key()),
    }
}

/// Inodes leave the cache.
#[inline(always)]
pub fn evict(keys: impl Iterator<Item = u64>) {
    if BUILT_IN {
        for key in keys {
            sdt!("evict", "8@{key}", key = in(reg) key);
        }
    }
}
