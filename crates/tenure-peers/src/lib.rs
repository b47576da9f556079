//! Programs with the locks of other languages, for tests and bench: built once, of their sources
//! and the names of the packages that they need.
//!
//! | language | tools | registry |
//! |---|---|---|
//! | Go | `go` | the module proxy |
//! | Java | `java`, `javac`, `mvn` | Maven Central |
//! | JavaScript | `node`, `npm` | npm |
//! | Python | `python3` with `venv` and pip | PyPI |
//!
//! A tool or a registry that cannot be had is an [`Error`] for which
//! [`is_missing`](Error::is_missing) is true. A program that does not compile is another error.

mod error;
mod tool;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub use self::error::{Error, Result};
pub use self::tool::last_lines;
use self::tool::run;

/// What a program is made of.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// Also the name of its folder.
    pub name: &'static str,
    /// What it is written in.
    pub language: Language,
    /// Names and texts of its files. The program begins in [`Language::main_file`].
    pub sources: &'static [(&'static str, &'static str)],
    /// As the tool of the language names them, with their versions.
    pub packages: &'static [&'static str],
}

/// What a program is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Go, with modules.
    Go,
    /// Java; packages are `group:artifact:version`.
    Java,
    /// JavaScript for Node.
    Javascript,
    /// Python, in an environment of its own.
    Python,
}

impl Language {
    /// The file in which a program begins.
    pub fn main_file(self) -> &'static str {
        match self {
            Language::Go => "peer.go",
            Language::Java => "Peer.java",
            Language::Javascript => "peer.mjs",
            Language::Python => "peer.py",
        }
    }
}

impl Recipe {
    /// Builds the program in a folder of its own below this one, unless that is done, each step in
    /// at most this time. Returns what starts it.
    ///
    /// # Errors
    ///
    /// A tool or a registry cannot be had, or the program cannot be built.
    pub fn command(&self, below: &Path, longest: Duration) -> Result<Command> {
        let folder = self.built(below, longest)?;
        Ok(match self.language {
            Language::Go => Command::new(folder.join("peer")),
            Language::Java => {
                let mut java = Command::new("java");
                let class_path = format!("{0}:{0}/lib/*", folder.display());
                java.args(["-Xmx512m", "-cp", &class_path, "Peer"]);
                java
            }
            Language::Python => {
                let mut python = Command::new(folder.join("venv/bin/python"));
                python.arg(folder.join("peer.py"));
                python
            }
            Language::Javascript => {
                let mut node = Command::new("node");
                node.arg(folder.join("peer.mjs"));
                node
            }
        })
    }

    /// The folder of the built program.
    fn built(&self, below: &Path, longest: Duration) -> Result<PathBuf> {
        let folder = below.join(self.name);
        fs::create_dir_all(below)?;
        // Other threads and processes may want the same program.
        let turn = File::create(below.join(format!("{}.lock", self.name)))?;
        turn.lock()?;
        let stamp = self.stamp();
        if fs::read_to_string(folder.join("built")).is_ok_and(|text| text == stamp) {
            return Ok(folder);
        }
        // What an earlier version left, or a build that was broken off.
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        for (file, text) in self.sources {
            fs::write(folder.join(file), text)?;
        }
        let steps = Steps { folder: &folder, longest };
        match self.language {
            Language::Go => self.build_go(&steps)?,
            Language::Java => self.build_java(&steps)?,
            Language::Javascript => self.build_javascript(&steps)?,
            Language::Python => self.build_python(&steps)?,
        }
        fs::write(folder.join("built"), stamp)?;
        Ok(folder)
    }

    /// Everything that decides what is built.
    fn stamp(&self) -> String {
        let texts = self.sources.iter().map(|(file, text)| format!("\n{file}\n{text}"));
        self.packages.join(" ") + &texts.collect::<String>()
    }

    fn build_go(&self, steps: &Steps<'_>) -> Result<()> {
        steps.fetch("go", &["mod", "init", "peer"])?;
        steps.fetch("go", &[&["get"], self.packages].concat())?;
        // Not `go mod tidy`, which wants what the tests of the packages need, too.
        steps.compile("go", &["build", "-mod=mod", "-o", "peer", "."])
    }

    fn build_java(&self, steps: &Steps<'_>) -> Result<()> {
        // Before a download that would be in vain.
        for tool in ["java", "javac"] {
            steps.fetch(tool, &["-version"])?;
        }
        let dependencies: String =
            self.packages.iter().map(|package| dependency(package)).collect();
        let project = format!(
            "<project><modelVersion>4.0.0</modelVersion><groupId>tenure</groupId>\
             <artifactId>peer</artifactId><version>1</version>\
             <dependencies>{dependencies}</dependencies></project>"
        );
        fs::write(steps.folder.join("pom.xml"), project)?;
        let copy = ["-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"];
        steps.fetch("mvn", &copy)?;
        let files: Vec<&str> = self.sources.iter().map(|(file, _)| *file).collect();
        steps.compile("javac", &[&["-cp", "lib/*", "-d", "."], &files[..]].concat())
    }

    fn build_javascript(&self, steps: &Steps<'_>) -> Result<()> {
        steps.fetch("node", &["--version"])?;
        fs::write(steps.folder.join("package.json"), r#"{"private":true}"#)?;
        let install = ["install", "--silent", "--no-audit", "--no-fund"];
        steps.fetch("npm", &[&install, self.packages].concat())
    }

    fn build_python(&self, steps: &Steps<'_>) -> Result<()> {
        steps.fetch("python3", &["-m", "venv", "venv"])?;
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        steps.fetch("venv/bin/python", &[&install, self.packages].concat())
    }
}

/// `group:artifact:version` as Maven writes it.
fn dependency(package: &str) -> String {
    let mut parts = package.split(':');
    let mut next = || parts.next().unwrap_or_default();
    let (group, artifact, version) = (next(), next(), next());
    format!(
        "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>\
         <version>{version}</version></dependency>"
    )
}

/// The steps of one build.
struct Steps<'a> {
    folder: &'a Path,
    longest: Duration,
}

impl Steps<'_> {
    /// A step that fails where a tool or a registry cannot be had.
    fn fetch(&self, tool: &str, arguments: &[&str]) -> Result<()> {
        run(self.folder, self.longest, tool, arguments).map_err(Error::missing)
    }

    /// A step that needs only what was fetched.
    fn compile(&self, tool: &str, arguments: &[&str]) -> Result<()> {
        run(self.folder, self.longest, tool, arguments).map_err(Error::failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_has_group_artifact_and_version() {
        let expected = "<dependency><groupId>g</groupId><artifactId>a</artifactId>\
                        <version>1.2</version></dependency>";
        assert_eq!(dependency("g:a:1.2"), expected);
    }

    #[test]
    fn a_tool_that_is_not_there_is_missing() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let steps = Steps { folder: folder.path(), longest: Duration::from_secs(60) };
        let error = steps.fetch("a-tool-that-is-not-there", &[]).expect_err("it is not there");
        assert!(error.is_missing(), "{error}");
        Ok(())
    }
}
