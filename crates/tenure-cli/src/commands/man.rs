//! `tenure man`: the manual page of the program or of one verb, in roff.

use std::io::Write;

use clap::{Command, CommandFactory};
use clap_mangen::Man as Page;

use crate::args::{Args, Man};
use crate::exit;
use crate::failure::Failure;
use crate::output;

const ENVIRONMENT: &[(&str, &str)] = &[
    ("TENURE_URL", "Where the locks live, if --url is not given; set for the command of run."),
    ("TENURE_REACH", "With network, a store of one machine is refused, as by --reach."),
    ("TENURE_KEY, TENURE_TOKEN", "Set for the command of run: the key and its fencing token."),
    ("XDG_STATE_HOME", "Where the embedded store lives, in its folder tenure."),
    ("NO_COLOR", "If set and not empty, nothing is coloured."),
];

const FILES: &[(&str, &str)] = &[
    (
        "$XDG_CONFIG_HOME/tenure/url, ~/.config/tenure/url",
        "The URL, if neither --url nor TENURE_URL names one.",
    ),
    ("/etc/tenure/url", "The URL for all users of the machine, if there is no file of the user."),
];

pub(super) fn run(args: &Man) -> Result<u8, Failure> {
    let mut program = Args::command();
    program.build();
    let command = match &args.verb {
        None => program,
        Some(verb) => super::help::verb(&program, verb)?,
    };
    let mut page = Vec::new();
    write(&mut page, command)?;
    output::print(&String::from_utf8_lossy(&page))?;
    Ok(exit::DONE)
}

fn write(out: &mut Vec<u8>, command: Command) -> std::io::Result<()> {
    Page::new(command).render(out)?;
    writeln!(out, ".SH \"EXIT STATUS\"")?;
    for (code, meaning) in exit::TABLE {
        writeln!(out, ".TP\n{code}\n{}", meaning.replace('\\', "\\\\"))?;
    }
    writeln!(out, ".SH ENVIRONMENT")?;
    for (name, meaning) in ENVIRONMENT {
        writeln!(out, ".TP\n{name}\n{meaning}")?;
    }
    writeln!(out, ".SH FILES")?;
    for (name, meaning) in FILES {
        writeln!(out, ".TP\n{name}\n{meaning}")?;
    }
    Ok(())
}
