//! Pages in two languages say the same: commands and code are equal but for their comments, tables
//! have the same cells of code and the same numbers.

use std::path::Path;

use super::{quoted, read};

/// Original and translation; a *whole* one leaves nothing out.
const PAIRS: &[(&str, &str, bool)] = &[
    ("README.md", "README.zh-CN.md", true),
    ("docs/choose.md", "docs/zh-CN/choose.md", true),
    ("docs/lab.md", "docs/zh-CN/lab.md", true),
    ("docs/fencing.md", "docs/zh-CN/fencing.md", false),
];

pub(super) fn faults(root: &Path) -> Vec<String> {
    let pairs = PAIRS.iter().flat_map(|(original, translation, whole)| {
        let faults = compare(&read(&root.join(original)), &read(&root.join(translation)), *whole);
        let name = move |fault| format!("{translation}, beside {original}: {fault}");
        faults.into_iter().map(name)
    });
    pairs.collect()
}

/// Everything of the translation is in the original, in the same order; of a whole one also the
/// other way round.
fn compare(original: &str, translation: &str, whole: bool) -> Vec<String> {
    let mut faults = Vec::new();
    for (what, known, found) in [
        ("code", blocks(original), blocks(translation)),
        ("table", tables(original), tables(translation)),
    ] {
        if found.is_empty() {
            faults.push(format!("it has no {what}"));
        }
        let mut left = known.iter();
        for part in &found {
            if !left.any(|known| known == part) {
                let head: String = part.chars().take(300).collect();
                faults.push(format!("{what} that differs, or is not in order: {head}"));
                break;
            }
        }
        if whole && known.len() != found.len() {
            let (known, found) = (known.len(), found.len());
            faults.push(format!("it has {found} blocks of {what}, and not {known}"));
        }
    }
    faults
}

/// The blocks of code, each with its info string, without comments.
fn blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => {
                let code = without_comment(line);
                if !code.is_empty() {
                    block.push('\n');
                    block.push_str(code);
                }
            }
            (None, Some(info)) => open = Some(info.split(" no-run").next().unwrap_or(info).into()),
            (None, None) => {}
        }
    }
    blocks
}

fn without_comment(line: &str) -> &str {
    let marks = ["// ", "/// ", "  # ", "-- "];
    let begins = |line: &str| line.starts_with("# ") || line.starts_with("//");
    let end = if begins(line.trim_start()) {
        0
    } else {
        marks.iter().filter_map(|mark| line.find(mark)).min().unwrap_or(line.len())
    };
    line[..end].trim_end()
}

/// The tables, as what does not depend on a language: rows of cells, with their code and numbers.
fn tables(text: &str) -> Vec<String> {
    let mut tables: Vec<String> = Vec::new();
    let mut inside = false;
    for line in super::links::prose(text) {
        let row = line.trim_start().starts_with('|');
        if row && !inside {
            tables.push(String::new());
        }
        inside = row;
        if let Some(table) = tables.last_mut().filter(|_| row) {
            let cells: Vec<String> = line.split('|').map(cell).collect();
            table.push_str(&cells.join("|"));
            table.push('\n');
        }
    }
    tables
}

/// Code and numbers of a cell, in the order of the alphabet: languages order words differently.
fn cell(text: &str) -> String {
    let mut code: Vec<String> = quoted(text).map(str::to_owned).collect();
    let plain: String = text.split('`').step_by(2).collect::<Vec<_>>().join(" ");
    // A link's target is not the same from another folder.
    let mut links = plain.split("](");
    let mut plain = links.next().unwrap_or_default().to_owned();
    plain.extend(links.map(|part| part.split_once(')').map_or(part, |(_, rest)| rest)));
    let numbers = plain.split(|c: char| !c.is_ascii_digit() && c != '.' && c != ',');
    let numbers = numbers.map(|number| number.trim_matches(['.', ',']));
    code.extend(numbers.filter(|number| !number.is_empty()).map(str::to_owned));
    code.sort();
    code.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGINAL: &str = "```console\n$ tenure ls   # all\n```\n\n| a |\n|---|\n| `ls`, 2 ms |\n";

    #[test]
    fn a_translation_that_differs_is_found() {
        for (translation, fits) in [
            ("```console\n$ tenure ls   # 全部\n```\n\n| 甲 |\n|---|\n| 2 毫秒，`ls` |\n", true),
            ("```console\n$ tenure show   # 全部\n```\n\n| 甲 |\n|---|\n| 2 毫秒，`ls` |\n", false),
            ("```console\n$ tenure ls\n```\n\n| 甲 |\n|---|\n| 3 毫秒，`ls` |\n", false),
            ("```console\n$ tenure ls\n```\n\n| 甲 |\n|---|\n| 2 毫秒，`show` |\n", false),
            ("```console\n$ tenure ls\n```\n", false),
        ] {
            let faults = compare(ORIGINAL, translation, true);
            assert_eq!(faults.is_empty(), fits, "{translation}: {faults:?}");
        }
    }

    #[test]
    fn a_translation_may_leave_parts_out_unless_it_is_whole() {
        let longer = format!("{ORIGINAL}\n| b |\n|---|\n| `x` |\n");
        assert!(compare(&longer, ORIGINAL, false).is_empty());
        assert!(!compare(&longer, ORIGINAL, true).is_empty());
    }
}
