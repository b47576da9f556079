//! Commands inside of sentences: their verbs, scenarios and locks exist.

use std::collections::BTreeSet;

use libtest_mimic::{Failed, Trial};

use crate::markdown::Page;
use crate::support::{output, tenure, text};

pub(crate) fn trial(pages: &[Page]) -> Trial {
    let found = pages.iter().flat_map(|page| {
        // A name with a part in brackets is how a server shows a session.
        let command = |span: &&String| span.starts_with("tenure ") && !span.contains('<');
        let commands = page.inline.iter().filter(command);
        commands.map(|command| (page.name.clone(), command.clone()))
    });
    let found: Vec<(String, String)> = found.collect();
    Trial::test("inline::commands_in_sentences_exist", move || check(&found))
}

fn check(found: &[(String, String)]) -> Result<(), Failed> {
    let words = |arguments: &[&str]| -> BTreeSet<String> {
        let shown = text(&output(&mut tenure(arguments.iter().copied())).stdout);
        let words = shown.split(|c: char| !c.is_alphanumeric() && c != '-');
        words.map(str::to_owned).collect()
    };
    let verbs = words(&["--help"]);
    let lab = words(&["lab", "list"]);
    if found.len() < 20 || !lab.contains("oversell") {
        return Err(format!("{} commands, {} words of the lab", found.len(), lab.len()).into());
    }
    for (page, command) in found {
        let mut rest = command
            .split_whitespace()
            .skip(1)
            .skip_while(|word| word.starts_with('-') || word.contains(':') || *word == "…");
        let Some(verb) = rest.next() else { continue };
        let unknown = |word: &str| format!("{page}: `{command}`: what is `{word}`?");
        if !verbs.contains(verb) {
            return Err(unknown(verb).into());
        }
        if verb == "lab" && rest.next() == Some("run") {
            let named = rest.filter(|word| !word.starts_with('-'));
            for word in named.filter(|word| word.chars().all(|c| c.is_alphabetic() || c == '-')) {
                if !lab.contains(word) {
                    return Err(unknown(word).into());
                }
            }
        }
    }
    Ok(())
}
