//! What the packages carry: the program, and what it says about itself.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::archive::File;
use super::binary::Needs;

/// The shells, with the folder where Debian has their scripts, and the name that they have there.
const SHELLS: &[(&str, &str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions", "tenure"),
    ("zsh", "usr/share/zsh/vendor-completions", "_tenure"),
    ("fish", "usr/share/fish/vendor_completions.d", "tenure.fish"),
];
const TEXTS: &[&str] = &["LICENSE-APACHE", "LICENSE-MIT", "README.md"];

pub(super) struct Content {
    pub(super) version: String,
    pub(super) needs: Needs,
    pub(super) program: File,
    /// Folder on Debian, name, script.
    pub(super) completions: Vec<(&'static str, &'static str, File)>,
    /// Man pages; the path is the file's name.
    pub(super) pages: Vec<File>,
    pub(super) texts: Vec<File>,
}

impl Content {
    /// Reads the program, and runs it for its version, completions and man pages.
    pub(super) fn of(program: &Path, root: &Path, version: &str) -> Result<Content, String> {
        let name = program.display();
        let bytes = fs::read(program).map_err(|error| format!("{name}: {error}"))?;
        let needs = Needs::of(&bytes).map_err(|reason| format!("{name} {reason}"))?;
        let said = said(program, &["--version"])?;
        let said = said.lines().next().unwrap_or_default();
        if said != format!("tenure {version}") {
            return Err(format!("{name} is `{said}`, and the manifest says `tenure {version}`"));
        }
        let mut completions = Vec::new();
        for (shell, folder, name) in SHELLS {
            let script = self::said(program, &["completions", shell])?;
            completions.push((*folder, *name, File::plain(*name, script)));
        }
        let mut texts = Vec::new();
        for name in TEXTS {
            let text = fs::read(root.join(name)).map_err(|error| format!("{name}: {error}"))?;
            texts.push(File::plain(*name, text));
        }
        let program_file = File { path: "tenure".into(), content: bytes, executable: true };
        Ok(Content {
            version: version.to_owned(),
            needs,
            program: program_file,
            completions,
            pages: pages(program)?,
            texts,
        })
    }

    pub(super) fn readme(&self) -> String {
        let readme = self.texts.iter().find(|text| text.path == "README.md");
        readme.map(|text| String::from_utf8_lossy(&text.content).into_owned()).unwrap_or_default()
    }

    pub(super) fn licences(&self) -> impl Iterator<Item = &File> {
        self.texts.iter().filter(|text| text.path.starts_with("LICENSE"))
    }
}

/// The page of the program, and of every verb that it names.
fn pages(program: &Path) -> Result<Vec<File>, String> {
    let first = said(program, &["man"])?;
    let verbs = first.lines().filter_map(|line| {
        let verb = line.strip_prefix("tenure\\-")?.strip_suffix("(1)")?;
        Some(verb.replace('\\', ""))
    });
    let verbs: Vec<String> = verbs.collect();
    if !verbs.iter().any(|verb| verb == "run") {
        return Err("the man page of the program names no page of `run`".to_owned());
    }
    let mut pages = vec![File::plain("tenure.1", first)];
    for verb in verbs {
        pages.push(File::plain(format!("tenure-{verb}.1"), said(program, &["man", &verb])?));
    }
    Ok(pages)
}

/// What the program prints. Its surroundings are no part of it.
fn said(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let shown = format!("{} {}", program.display(), arguments.join(" "));
    let output = Command::new(program).args(arguments).env_clear().output();
    let output = output.map_err(|error| format!("`{shown}` cannot be run here: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(format!("`{shown}` failed ({}): {text}", output.status));
    }
    let text = String::from_utf8(output.stdout).map_err(|error| format!("`{shown}`: {error}"))?;
    if text.is_empty() { Err(format!("`{shown}` printed nothing")) } else { Ok(text) }
}
