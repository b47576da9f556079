//! `tenure man`: the manual page of the program or of one verb, in roff. Names, descriptions and
//! flags are those of `args`; `sections` has what they do not say.

mod sections;

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command, CommandFactory};
use clap_mangen::Man as Page;

use crate::args::{Args, Man};
use crate::exit;
use crate::failure::Failure;
use crate::output;

pub(super) fn run(args: &Man) -> Result<u8, Failure> {
    let mut program = Args::command();
    program.build();
    let command = match &args.verb {
        None => program,
        Some(verb) => super::help::verb(&program, verb)?,
    };
    let mut page = Vec::new();
    let rendered = Page::new(command.clone());
    rendered.render_title(&mut page)?;
    rendered.render_name_section(&mut page)?;
    page.extend(synopsis(&command).into_bytes());
    rendered.render_description_section(&mut page)?;
    rendered.render_options_section(&mut page)?;
    if command.has_subcommands() {
        rendered.render_subcommands_section(&mut page)?;
    }
    page.extend(sections::render(&command).into_bytes());
    output::print(&String::from_utf8_lossy(&page))?;
    Ok(exit::DONE)
}

fn synopsis(command: &Command) -> String {
    let mut text = String::from(".SH SYNOPSIS\n");
    let verbs: Vec<_> = command.get_subcommands().filter(|verb| !verb.is_hide_set()).collect();
    for verb in if verbs.is_empty() { vec![command] } else { verbs } {
        for form in forms(verb) {
            let name = verb.get_bin_name().unwrap_or("tenure");
            let (name, form) = (sections::escape(name), sections::escape(&form));
            let _cannot_fail = writeln!(text, "\\fB{name}\\fR {form}\n.br");
        }
    }
    text
}

/// How a verb is written: its flags with their values, then its arguments.
fn forms(verb: &Command) -> Vec<String> {
    let shown = |arg: &&Arg| !arg.is_hide_set() && !arg.is_global_set() && arg.get_id() != "help";
    // Each of them makes a form of its own.
    let separate = ["shell_command", "command", "observe", "who"];
    let is_separate = |arg: &&Arg| separate.contains(&arg.get_id().as_str());
    let arguments: Vec<_> = verb.get_arguments().filter(shown).collect();
    let common: Vec<_> = arguments.iter().copied().filter(|arg| !is_separate(arg)).collect();
    let (values, flags): (Vec<&Arg>, Vec<&Arg>) =
        common.iter().partition(|arg| arg.is_positional());
    let words: Vec<_> = flags.into_iter().chain(values).map(form).collect();
    let words = words.join(" ");
    if arguments.len() == common.len() {
        return vec![words];
    }
    let mut forms = vec![format!("{words} -- CMD [ARG]..."), format!("{words} -c COMMAND")];
    for alone in ["observe", "who"] {
        if arguments.iter().any(|arg| arg.get_id() == alone) {
            forms.push(format!("--{alone} [--json] KEY"));
        }
    }
    forms
}

/// One argument, as in `[-w|--wait DUR]` or `KEY`.
fn form(arg: &Arg) -> String {
    let value = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
    let value = value.unwrap_or_else(|| arg.get_id().to_string().to_uppercase());
    let flag = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("-{short}|--{long}"),
        (Some(short), None) => format!("-{short}"),
        (None, Some(long)) => format!("--{long}"),
        (None, None) => String::new(),
    };
    let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let is_optional = arg.get_num_args().is_some_and(|count| count.min_values() == 0);
    let text = match (flag.is_empty(), takes_value) {
        (true, _) if arg.get_num_args().is_some_and(|count| count.max_values() > 1) => {
            format!("{value}...")
        }
        (true, _) => value,
        (false, true) if is_optional => format!("{flag}[={value}]"),
        (false, true) => format!("{flag} {value}"),
        (false, false) => flag,
    };
    if arg.is_required_set() { text } else { format!("[{text}]") }
}
