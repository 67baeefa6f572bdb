//! Damages ext4 images at random, and reads them, until it finds something or the time is
//! over; or reads one that was written down.
//!
//! ```text
//! cargo run --release -p rcuwalk-conformance --example ext4_fuzz -- --seconds 60 --seed 1
//! cargo run --release -p rcuwalk-conformance --example ext4_fuzz -- --replay "plain; …"
//! ```

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rcuwalk_conformance::damage::{
    Choices, Counting, Finding, Mutant, Seed, examine, seeds, watch,
};
use rcuwalk_testkit::Rng;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Longer than this is for ever.
const FOR_EVER: Duration = Duration::from_secs(60);

struct Options {
    seconds: u64,
    seed: u64,
    /// Goes on after a find, and lists all of them.
    keep_going: bool,
    replay: Option<String>,
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(why) => {
            eprintln!(
                "{why}\nusage: ext4_fuzz [--seconds N] [--seed S] [--keep-going] [--replay MUTANT]"
            );
            return ExitCode::from(2);
        }
    };
    let seeds = match seeds() {
        Ok(seeds) => seeds,
        Err(why) => {
            eprintln!("skipped: {why}");
            return ExitCode::SUCCESS;
        }
    };
    watch(FOR_EVER);
    match &options.replay {
        Some(text) => replay(&seeds, text),
        None => run(&seeds, &options),
    }
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        seconds: 10,
        seed: 1,
        keep_going: false,
        replay: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} wants a value"));
        let number = |text: String| text.parse().map_err(|_| format!("{text} is no number"));
        match arg.as_str() {
            "--seconds" => options.seconds = number(value()?)?,
            "--seed" => options.seed = number(value()?)?,
            "--keep-going" => options.keep_going = true,
            "--replay" => options.replay = Some(value()?),
            _ => return Err(format!("{arg} is no option")),
        }
    }
    Ok(options)
}

fn replay(seeds: &[Seed], text: &str) -> ExitCode {
    let mutant: Mutant = match text.parse() {
        Ok(mutant) => mutant,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    let Some(seed) = seeds.iter().find(|seed| seed.name == mutant.seed) else {
        eprintln!("no seed is called {}", mutant.seed);
        return ExitCode::from(2);
    };
    match examine(seed, &mutant) {
        Ok(coverage) => {
            println!("{coverage:?}");
            ExitCode::SUCCESS
        }
        Err(finding) => {
            report(&finding);
            ExitCode::FAILURE
        }
    }
}

fn run(seeds: &[Seed], options: &Options) -> ExitCode {
    let mut stats = Stats::default();
    let begin = Instant::now();
    let mut told = begin;
    for index in 0.. {
        if begin.elapsed().as_secs() >= options.seconds {
            break;
        }
        let mut choices = Choices::Random(Rng::derived(options.seed, index));
        let (seed, mutant) = Mutant::plan(seeds, &mut choices);
        let now = Instant::now();
        match examine(seed, &mutant) {
            Ok(coverage) => {
                stats.opened += u64::from(coverage.opened);
                stats.entries += coverage.entries as u64;
                stats.problems += coverage.problems as u64;
            }
            Err(finding) => {
                println!("mutant {index} of seed {}: {mutant}", options.seed);
                report(&finding);
                stats.finds += 1;
                if !options.keep_going {
                    break;
                }
            }
        }
        stats.add(&mutant, now.elapsed());
        if told.elapsed().as_secs() >= 60 {
            told = Instant::now();
            println!("{}", stats.line(begin.elapsed()));
        }
    }
    println!("{}", stats.line(begin.elapsed()));
    for (about, count) in &stats.about {
        println!("  {about:<20} {count}");
    }
    match stats.finds {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn report(finding: &Finding) {
    println!("{}\n  {}", finding.why, finding.mutant);
}

#[derive(Default)]
struct Stats {
    mutants: u64,
    opened: u64,
    entries: u64,
    problems: u64,
    finds: u64,
    slowest: Duration,
    /// How many changes of each kind, and how many mutants of each seed.
    about: BTreeMap<String, u64>,
}

impl Stats {
    fn add(&mut self, mutant: &Mutant, time: Duration) {
        self.mutants += 1;
        self.slowest = self.slowest.max(time);
        *self.about.entry(mutant.seed.clone()).or_default() += 1;
        for mutation in &mutant.mutations {
            *self.about.entry(mutation.about()).or_default() += 1;
        }
    }

    fn line(&self, time: Duration) -> String {
        let rate = self.mutants as f64 / time.as_secs_f64();
        format!(
            "{} mutants in {:.0} s ({rate:.0}/s), {} opened, {} entries, {} problems, \
             slowest {:.0} ms, {} finds",
            self.mutants,
            time.as_secs_f64(),
            self.opened,
            self.entries,
            self.problems,
            self.slowest.as_secs_f64() * 1e3,
            self.finds
        )
    }
}
