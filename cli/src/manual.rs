//! Man pages and shell completions, generated from the help texts.

use std::fs;
use std::path::PathBuf;

use clap_complete::Shell;
use clap_mangen::Man;

use crate::failure::{Failure, Words, print};

/// Print completions for a shell
///
/// For bash, to have them in this session: `source <(rcuwalk completions bash)`.
#[derive(clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(crate) fn completions(args: &CompletionsArgs, cli: &clap::Command) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut shown(cli), "rcuwalk", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// Removes hidden arguments from a command: clap would offer them as completions.
fn shown(command: &clap::Command) -> clap::Command {
    let args = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let commands = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    clap::Command::new(command.get_name().to_owned())
        .version(command.get_version().unwrap_or_default().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .args(args.cloned())
        .subcommands(commands.map(shown))
}

/// Write the man pages of all commands into a directory
#[derive(clap::Args)]
pub(crate) struct ManArgs {
    /// The directory, as `/usr/local/share/man/man1`
    directory: PathBuf,
}

pub(crate) fn pages(args: &ManArgs, mut cli: clap::Command) -> Result<(), Failure> {
    // Gives each subcommand its full name, and the options that all have.
    cli.build();
    page(args, cli)
}

/// One for `command`, `rcuwalk-mount.1`, and those of its subcommands.
fn page(args: &ManArgs, command: clap::Command) -> Result<(), Failure> {
    let shown = command.get_subcommands();
    let shown = shown.filter(|command| !command.is_hide_set() && command.get_name() != "help");
    for subcommand in shown.cloned().collect::<Vec<_>>() {
        page(args, subcommand)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    let file = args.directory.join(format!("{name}.1"));
    let mut text = Vec::new();
    let title = name.to_uppercase();
    let page = Man::new(command).title(title).manual("rcuwalk");
    let done = page.render(&mut text);
    done.and_then(|()| fs::write(&file, text)).map_err(|err| {
        Failure::error(format_args!(
            "cannot write {}: {}",
            file.display(),
            Words(&err)
        ))
    })
}
