use super::*;

const fn seconds(time: u64) -> Duration {
    Duration::from_secs(time)
}

/// Slow requests that one user has when the next is refused: half as many as may still become
/// slow.
const SHARE: usize = MOST_SPARE.div_ceil(3);

/// What the watcher sees of these threads, all of one group, of which one is wanted.
fn look(watch: &Watch, now: Duration, works: &[Work]) -> Load {
    let mut loads = [Load::wanting(1)];
    watch.look_at(now, works.iter().map(|work| (0, work)), &mut loads);
    loads[0]
}

/// WATCH-1: a thread is blocked while its request stays the same, and not a moment longer.
#[test]
fn a_request_ages_while_its_thread_does_not_go_on() {
    let watch = Watch::with_spares(MOST_SPARE);
    let works = [Work::default(), Work::default()];
    assert!(!look(&watch, seconds(0), &works).wants_more(), "all idle");
    works[0].begin(7);
    let first = look(&watch, seconds(1), &works);
    assert_eq!((first.threads, first.blocked), (2, 0), "it may be quick");
    let second = look(&watch, seconds(3), &works);
    assert_eq!((second.blocked, second.slow, second.stuck), (1, 1, 0));
    assert!(!second.wants_more(), "the other thread goes on");
    // Another request of the same user.
    works[0].idle();
    works[0].begin(7);
    assert_eq!(look(&watch, seconds(6), &works).blocked, 0);
    works[1].begin(8);
    look(&watch, seconds(7), &works);
    assert!(look(&watch, seconds(8), &works).wants_more(), "both");
    assert_eq!(look(&watch, seconds(11), &works).stuck, 1);
    assert!(!watch.are_stuck([].into_iter()), "nobody is not all");
    works.iter().for_each(Work::idle);
    let none = look(&watch, seconds(12), &works);
    assert_eq!((none.blocked, none.stuck), (0, 0));
    assert_eq!(watch.oldest.load(Relaxed), NONE);
}

/// WATCH-1: a thread that waits for a processor is not blocked, and gets no help by another one;
/// one that waits for anything else is.
#[test]
fn a_thread_that_could_go_on_is_not_blocked() {
    let watch = Watch::with_spares(MOST_SPARE);
    let (work, is_over) = (Work::default(), AtomicBool::new(false));
    let (sleeps, wake) = std::io::pipe().unwrap();
    let answer = || {
        work.is_of(rustix::thread::gettid().as_raw_pid().cast_unsigned());
        work.begin(7);
        while !is_over.load(Relaxed) {
            std::hint::spin_loop();
        }
        let _ = rustix::io::read(&sleeps, &mut [0]);
    };
    let blocked = |at| {
        look(
            &watch,
            Duration::from_millis(at),
            std::slice::from_ref(&work),
        )
        .blocked
    };
    let (computes, sleeps) = std::thread::scope(|scope| {
        scope.spawn(answer);
        while work.now.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        let computes = [0, 100, 1100].map(blocked);
        is_over.store(true, Relaxed);
        while work.has_work_to_do() {
            std::thread::yield_now();
        }
        work.begin(7);
        let sleeps = [1200, 1300].map(blocked);
        drop(wake);
        (computes, sleeps)
    });
    assert_eq!(computes, [0, 0, 1], "WATCH-1: not before it is slow");
    assert_eq!(sleeps, [0, 1], "WATCH-1: it may be quick, and is not");
}

/// WATCH-1: a user beyond the share is refused, and another one is not.
#[test]
fn a_users_share_of_stuck_requests_is_bounded() {
    let watch = Watch::with_spares(MOST_SPARE);
    let works: Vec<Work> = (0..=SHARE).map(|_| Work::default()).collect();
    works[1..].iter().for_each(|work| work.begin(7));
    look(&watch, seconds(0), &works);
    assert!(watch.admits(7, 0), "they may be quick");
    look(&watch, seconds(5), &works);
    assert!(!watch.admits(7, 0) && watch.admits(8, 0), "WATCH-1");
    works[1].idle();
    look(&watch, seconds(6), &works);
    assert!(watch.admits(7, 0), "one less");
    assert_eq!(watch.stuck().refused, 1);
}

/// WATCH-1: where requests carry no user, the share is that of the thread's user.
#[test]
fn stuck_requests_of_a_thread_count_for_its_user() {
    let watch = Watch::with_spares(MOST_SPARE);
    watch.knows_threads_only();
    // The test's user is trusted, with twice the share.
    let works: Vec<Work> = (0..=2 * SHARE).map(|_| Work::default()).collect();
    let thread = rustix::thread::gettid().as_raw_pid().cast_unsigned();
    works[1..].iter().for_each(|work| work.begin(thread));
    look(&watch, seconds(0), &works);
    look(&watch, seconds(5), &works);
    let user = rustix::process::geteuid().as_raw();
    assert!(
        !watch.admits(user, 0) && watch.admits(user + 1, 0),
        "WATCH-1"
    );
}

/// WATCH-1: the last thread begins no request that may block while all others are stuck,
/// and there is always one more for requests that cannot be refused.
#[test]
fn the_last_thread_refuses_while_all_others_are_stuck() {
    let watch = Watch::with_spares(MOST_SPARE);
    let works: Vec<Work> = (0..=MOST_SPARE).map(|_| Work::default()).collect();
    for (uid, work) in (0..).zip(&works[1..]) {
        work.begin(uid);
    }
    look(&watch, seconds(0), &works);
    assert!(watch.admits(5000, 0));
    let full = look(&watch, seconds(5), &works);
    assert!(!watch.admits(5000, 0), "WATCH-1");
    assert!(!full.wants_more(), "that one is there");
    assert!(watch.admits(0, 0), "WATCH-1: root");
    works[0].begin(5000);
    look(&watch, seconds(6), &works);
    assert!(look(&watch, seconds(7), &works).wants_more(), "one more");
}

/// WATCH-1: slow requests count before they are stuck, and quick ones never do, however many
/// threads they block.
#[test]
fn requests_count_once_they_are_slow() {
    let watch = Watch::with_spares(MOST_SPARE);
    let works: Vec<Work> = (0..=MOST_SPARE).map(|_| Work::default()).collect();
    works.iter().for_each(|work| work.begin(7));
    look(&watch, seconds(0), &works);
    look(&watch, Duration::from_millis(900), &works);
    assert!(
        watch.admits(7, 0) && watch.admits(8, 0),
        "they may be quick"
    );
    works[SHARE..].iter().for_each(Work::idle);
    look(&watch, seconds(1), &works);
    assert!(!watch.admits(7, 0) && watch.admits(8, 0), "WATCH-1");
}

/// WATCH-1: spare threads end once the others have been enough for a while, however many requests
/// come; not while requests keep the others blocked for short times.
#[test]
fn spare_threads_go_when_the_others_have_been_enough_for_a_while() {
    let watch = Watch::with_spares(MOST_SPARE);
    let works: Vec<Work> = (0..3).map(|_| Work::default()).collect();
    let mut now = seconds(0);
    let mut see = |wanted| {
        let mut loads = [Load::wanting(wanted)];
        now += TICK;
        watch.look_at(now, works.iter().map(|work| (0, work)), &mut loads);
        now
    };
    let has_too_many = |now, wanted| watch.has_too_many_at(now, 0, wanted, works.iter());
    // Two are wanted. Their requests take two ticks each, one after the other.
    for _ in 0..10 {
        works[..2].iter().for_each(|work| work.begin(7));
        see(2);
        assert!(!has_too_many(see(2), 2), "WATCH-1: both are blocked");
        works[..2].iter().for_each(Work::idle);
    }
    assert!(!has_too_many(see(2), 2), "WATCH-1: they may be again");
    // From now on requests are quick, and all threads get some.
    for _ in 0..10 {
        works.iter().for_each(|work| work.begin(7));
        see(2);
    }
    works.iter().for_each(Work::idle);
    let now = see(2);
    assert!(has_too_many(now, 2), "one more than are wanted");
    assert!(!has_too_many(now, 3), "WATCH-1: as many as are wanted");
}

/// WATCH-1: any number of users, each with as many as are admitted, leaves threads for root and
/// for the daemon's user, but not without a bound.
#[test]
fn many_users_do_not_take_the_last_threads() {
    let watch = Watch::with_spares(MOST_SPARE);
    let works: Vec<Work> = (0..2 * (1 + MOST_SPARE)).map(|_| Work::default()).collect();
    let own = rustix::process::geteuid().as_raw();
    let (mut now, mut taken) = (seconds(0), 0);
    let mut users = 0;
    // Each user asks until refused; each request takes a thread for good.
    for uid in own + 1..own + 1000 {
        users += usize::from(watch.admits(uid, 0));
        while taken < works.len() && watch.admits(uid, 0) {
            works[taken].begin(uid);
            taken += 1;
            look(&watch, now, &works);
            now += seconds(1);
            look(&watch, now, &works);
        }
    }
    assert!(taken > MOST_SPARE * 4 / 5, "they get most of them: {taken}");
    assert!(taken < 1 + MOST_SPARE, "WATCH-1: {taken}");
    assert!(users > 5, "WATCH-1: no more than half: {users}");
    assert!(!watch.admits(own + 1000, 0), "WATCH-1: a new user");
    assert!(watch.admits(own, 0) && watch.admits(0, 0), "WATCH-1");
    // More have come at one time, all blocked but the last.
    let last = works.len() - 1;
    works[taken..last].iter().for_each(|work| work.begin(7));
    look(&watch, now, &works);
    look(&watch, now + seconds(1), &works);
    assert!(!watch.admits(0, 0), "WATCH-1: the last one");
}

/// WATCH-1: all groups share the bound that a single group has (threads for root do not raise it),
/// and the first group does not get all of them.
#[test]
fn groups_share_one_bound_of_spare_threads() {
    let mut threads = [1; 20];
    let mut quotas = Vec::new();
    let mut grow = |groups: std::ops::Range<usize>| {
        for _ in 0..2 * MOST_SPARE {
            let load = |(group, threads): (usize, &usize)| Load {
                threads: *threads,
                blocked: if groups.contains(&group) { *threads } else { 0 },
                ..Load::wanting(1)
            };
            let mut loads: Vec<Load> = threads.iter().enumerate().map(load).collect();
            share_spares(&mut loads, &mut quotas, MOST_SPARE);
            for group in groups.clone() {
                threads[group] += usize::from(threads[group] < 1 + loads[group].quota);
            }
        }
        threads.map(|threads| threads - 1)
    };
    assert_eq!(grow(3..4)[3], MOST_SPARE / 2, "half of them");
    let second = grow(5..6)[5];
    assert_eq!(second, MOST_SPARE / 4, "WATCH-1: half of the rest");
    let all: usize = grow(0..20).iter().sum();
    assert!(all <= MOST_SPARE, "WATCH-1: {all}");
    // A thread of root's does not raise the bound.
    let mut load = [Load {
        threads: 1 + MOST_SPARE + 5,
        ..Load::wanting(1)
    }];
    share_spares(&mut load, &mut Vec::new(), MOST_SPARE);
    assert_eq!(load[0].quota, MOST_SPARE);
}
