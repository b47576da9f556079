//! The pages, and the blocks of code in them.

use std::path::{Path, PathBuf};

/// A block between two fences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// File and line, as `README.md:12`.
    pub(crate) place: String,
    pub(crate) language: String,
    attributes: Vec<(String, String)>,
    pub(crate) text: String,
}

impl Block {
    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        let mut attributes = self.attributes.iter();
        attributes.find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn attribute_names(&self) -> impl Iterator<Item = &str> {
        self.attributes.iter().map(|(name, _)| name.as_str())
    }

    /// Whether another block would do the same.
    pub(crate) fn same_as(&self, other: &Block) -> bool {
        let code = |block: &Block| match block.language.as_str() {
            "console" => commands(&block.text),
            _ => vec![block.text.clone()],
        };
        self.attributes == other.attributes && code(self) == code(other)
    }
}

pub(crate) struct Page {
    pub(crate) name: String,
    pub(crate) blocks: Vec<Block>,
    /// What stands in backquotes inside of sentences.
    pub(crate) inline: Vec<String>,
}

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// README in every language, and everything in `docs`.
pub(crate) fn pages() -> Vec<Page> {
    let root = root();
    let mut names = vec!["README.md".to_owned(), "README.zh-CN.md".to_owned()];
    for folder in ["docs", "docs/backends", "docs/zh-CN"] {
        let entries = std::fs::read_dir(root.join(folder)).unwrap();
        let files = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let pages = files.filter(|name| name.ends_with(".md"));
        names.extend(pages.map(|name| format!("{folder}/{name}")));
    }
    names.sort();
    names
        .into_iter()
        .map(|name| {
            let text = std::fs::read_to_string(root.join(&name)).unwrap();
            let blocks = blocks(&name, &text);
            let inline = inline(&text);
            Page { name, blocks, inline }
        })
        .collect()
}

fn blocks(page: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, Some(info)) => {
                let (language, rest) = info.split_once(' ').unwrap_or((info, ""));
                open = Some(Block {
                    place: format!("{page}:{}", number + 1),
                    language: language.to_owned(),
                    attributes: attributes(rest),
                    text: String::new(),
                });
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{page}: a block is not closed");
    blocks
}

fn inline(text: &str) -> Vec<String> {
    let mut code = false;
    let prose = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    let spans = prose.flat_map(|line| line.split('`').skip(1).step_by(2));
    spans.map(str::to_owned).collect()
}

/// `name=value`, `name="several words"`.
fn attributes(mut text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    while let Some((name, rest)) = text.trim_start().split_once('=') {
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').expect("an attribute ends with a quote"),
            None => rest.split_once(' ').unwrap_or((rest, "")),
        };
        found.push((name.to_owned(), value.to_owned()));
        text = rest;
    }
    assert!(text.trim().is_empty(), "what is `{text}` in an info string?");
    found
}

/// The commands of a block, without comments at their end; a backslash continues one.
pub(crate) fn commands(text: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut goes_on = false;
    for line in text.lines() {
        let command = line.strip_prefix("$ ");
        if goes_on {
            let last = commands.last_mut().unwrap();
            last.push('\n');
            last.push_str(line);
        } else if let Some(command) = command {
            let end = command.find("  #").or(command.find(" # ")).unwrap_or(command.len());
            commands.push(command[..end].trim_end().to_owned());
        }
        goes_on = (goes_on || command.is_some()) && line.ends_with('\\');
    }
    commands
}

/// What a block shows as output.
pub(crate) fn shown_output(text: &str) -> Vec<&str> {
    let mut goes_on = false;
    let mut shown = Vec::new();
    for line in text.lines() {
        let command = goes_on || line.starts_with("$ ");
        goes_on = command && line.ends_with('\\');
        if !command && !line.trim().is_empty() && !line.starts_with('#') {
            shown.push(line);
        }
    }
    shown
}
