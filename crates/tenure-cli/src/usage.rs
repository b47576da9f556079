//! Errors of the command line, in the words of all other errors: clap finds them, and this module
//! says what is wrong and what to try.

use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{Arg, Command, CommandFactory};

use crate::args::Args;
use crate::exit;
use crate::failure::Failure;
use crate::output;

/// How a command is given to `run`.
pub(crate) const COMMAND: &str = "put it behind `--`, as in: tenure run deploy -- ./deploy.sh";

/// Prints what clap reports: help and version are data, everything else is a usage error.
pub(crate) fn refuse(error: &Error) -> Result<u8, Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            output::print_help(error)?;
            Ok(exit::DONE)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            output::print_help(error)?;
            Ok(exit::USAGE)
        }
        _ => {
            let words: Vec<OsString> = std::env::args_os().skip(1).collect();
            let (message, advice) = explain(error, &words);
            Err(Failure::new(exit::USAGE, message, advice))
        }
    }
}

/// What is wrong, and what to try.
fn explain(error: &Error, words: &[OsString]) -> (String, String) {
    let argument = list(error, ContextKind::InvalidArg).join(" ");
    let value = list(error, ContextKind::InvalidValue).join(" ");
    let other = list(error, ContextKind::PriorArg).join("`, `");
    let help = || help(words);
    let one_of = |kind: ContextKind| suggestion(&list(error, kind));
    match error.kind() {
        ErrorKind::UnknownArgument if command_without_separator(words).is_some() => {
            missing_separator(words)
        }
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            let near = one_of(ContextKind::SuggestedArg);
            (format!("there is no flag `{argument}` here"), near.unwrap_or_else(help))
        }
        ErrorKind::UnknownArgument => (format!("`{argument}` is one argument too many"), help()),
        ErrorKind::InvalidSubcommand => {
            let verb = list(error, ContextKind::InvalidSubcommand).join(" ");
            if verb == "lab" && !cfg!(feature = "lab") {
                let advice = "build it from a clone: cargo install --path crates/tenure-cli";
                return ("this program was built without the lab".to_owned(), advice.to_owned());
            }
            let near = one_of(ContextKind::SuggestedSubcommand);
            (format!("there is no verb `{verb}`"), near.unwrap_or_else(help))
        }
        ErrorKind::MissingSubcommand => ("the verb is missing".to_owned(), help()),
        ErrorKind::MissingRequiredArgument if command_without_separator(words).is_some() => {
            missing_separator(words)
        }
        ErrorKind::MissingRequiredArgument if argument.starts_with("<CMD>") => {
            ("the command is missing: <CMD>".to_owned(), COMMAND.to_owned())
        }
        ErrorKind::MissingRequiredArgument => (format!("missing: {argument}"), help()),
        ErrorKind::ArgumentConflict if argument == other => {
            (format!("`{argument}` is given more than once"), help())
        }
        ErrorKind::ArgumentConflict => {
            (format!("`{argument}` cannot be used with `{other}`"), help())
        }
        ErrorKind::InvalidValue if value.is_empty() => {
            (format!("`{argument}` needs a value"), help())
        }
        ErrorKind::InvalidValue => {
            let known = one_of(ContextKind::ValidValue);
            (format!("`{value}` is no value for `{argument}`"), known.unwrap_or_else(help))
        }
        ErrorKind::ValueValidation => {
            let reason = error.source().map(|reason| format!(": {reason}")).unwrap_or_default();
            (format!("`{value}` is no value for `{argument}`{reason}"), help())
        }
        _ => (first_paragraph(error), help()),
    }
}

fn missing_separator(words: &[OsString]) -> (String, String) {
    let command = command_without_separator(words).unwrap_or_default();
    let advice = format!("put `--` before the command, as in: … -- {command} …");
    (format!("`--` is missing before `{command}`"), advice)
}

/// The first word of the command of a `run` or `elect` without `--` and `-c`: the one behind the
/// key.
fn command_without_separator(words: &[OsString]) -> Option<String> {
    let verb = verb(words);
    let runs = ["run", "elect"].contains(&verb.get_name());
    if !runs || words.iter().any(|word| word == "--") {
        return None;
    }
    let mut words = words.iter().filter_map(|word| word.to_str());
    words.find(|word| *word == verb.get_name())?;
    let mut positional = 0;
    while let Some(word) = words.next() {
        if !word.starts_with('-') {
            positional += 1;
            if positional == 2 {
                return Some(word.to_owned());
            }
            continue;
        }
        let arg = verb.get_arguments().find(|arg| is_named(arg, word))?;
        if arg.get_id() == "shell_command" {
            return None;
        }
        if arg.get_action().takes_values() && word.len() > 1 && !word.contains('=') {
            words.next();
        }
    }
    None
}

/// Whether this word is that flag, alone or with its value behind `=`.
fn is_named(arg: &Arg, word: &str) -> bool {
    let name = word.split('=').next().unwrap_or(word);
    let is_short = |short: char| name.strip_prefix('-') == Some(short.to_string().as_str());
    let is_long = |long: &str| name.strip_prefix("--") == Some(long);
    arg.get_short().is_some_and(is_short) || arg.get_long().is_some_and(is_long)
}

/// The definition of the verb that these words name, or of the program.
fn verb(words: &[OsString]) -> Command {
    let mut command = Args::command();
    command.build();
    for word in words.iter().take_while(|word| *word != "--").filter_map(|word| word.to_str()) {
        command = command.find_subcommand(word).cloned().unwrap_or(command);
    }
    command
}

/// The usage of the verb, and where more of it is explained.
fn help(words: &[OsString]) -> String {
    let mut verb = verb(words);
    let usage = verb.render_usage().to_string();
    let usage = usage.lines().next().unwrap_or_default().trim_start_matches("Usage:").trim();
    format!("{usage}, or see `{} --help`", verb.get_bin_name().unwrap_or("tenure"))
}

fn suggestion(known: &[String]) -> Option<String> {
    match known {
        [] => None,
        [one] => Some(format!("`{one}`")),
        several => Some(format!("one of {}", several.join(", "))),
    }
}

fn list(error: &Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(one)) => vec![one.clone()],
        Some(ContextValue::Strings(several)) => several.clone(),
        _ => Vec::new(),
    }
}

/// What clap itself says, without what surrounds it.
fn first_paragraph(error: &Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let lines = text.lines().take_while(|line| !line.is_empty());
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}
