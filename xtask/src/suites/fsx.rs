//! fsx: one file, written, mapped, truncated, punched and copied at random, and compared with
//! the expected contents after every step.
//!
//! The file is small, so that most steps meet what an earlier one has left. No step is of
//! no bytes: for posix_fallocate(3) that is an error everywhere, and fsx takes it for one.

use std::env;
use std::fs;
use std::process::Command;
use std::time::Duration;

use super::Setting;
use super::mounted::Mounted;
use crate::run::Result;

const CONFIG: &str = "
flen = 65536
nomsyncafterwrite = UNSYNCED
[opsize]
min = 1
max = 16384
[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 5
fsync = 0.2
fdatasync = 0.2
posix_fallocate = 3
punch_hole = 3
sendfile = 3
posix_fadvise = 2
copy_file_range = 3
";

/// How often fsx begins anew, each time elsewhere.
const SEEDS: u64 = 4;

/// Steps for each seed.
const STEPS: u64 = 25_000;

/// A step takes less than a millisecond on a machine that has nothing else to do.
const LIMIT_OF_STEP: Duration = Duration::from_millis(10);

pub(super) fn run(setting: &Setting<'_>, mounted: &mut Mounted, name: &str) -> Result<()> {
    let first = set_or("RCUWALK_SEED", 1)?;
    let steps = set_or("RCUWALK_FSX_STEPS", STEPS)?;
    let limit = LIMIT_OF_STEP.saturating_mul(steps.try_into().unwrap_or(u32::MAX));
    let scratch = setting.scratch.path();
    for seed in (0..SEEDS).map(|number| first.wrapping_add(number)) {
        println!("fsx on {name}, {steps} steps from seed {seed}");
        // By turns: what a mapping has written is asked to be kept, or left to the kernel.
        let text = CONFIG.replace("UNSYNCED", if seed % 2 == 0 { "true" } else { "false" });
        let config = scratch.join(format!("fsx-{name}.toml"));
        fs::write(&config, text).map_err(|err| format!("{}: {err}", config.display()))?;
        let mut command = Command::new(setting.tools.join("bin/fsx"));
        command.arg("-f").arg(config).arg("-P").arg(scratch);
        command.args(["-N", &steps.to_string(), "-S", &seed.to_string()]);
        command.arg(mounted.path().join(format!("fsx{seed}")));
        let output = scratch.join(format!("fsx-{name}.out"));
        let (status, output) = mounted.run(&mut command, limit, &output)?;
        if !status.success() {
            return Err(format!("fsx on {name}, seed {seed}: {status}\n{output}"));
        }
    }
    Ok(())
}

/// The caller's own number goes before ours.
fn set_or(name: &str, default: u64) -> Result<u64> {
    let Ok(text) = env::var(name) else {
        return Ok(default);
    };
    text.parse().map_err(|err| format!("{name}={text}: {err}"))
}
