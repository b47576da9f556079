//! `cargo xtask test`: everything that has to hold, in as few builds as it takes.

use std::process::{Command, ExitCode};
use std::time::Instant;

/// How much to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Everything,
    Quick,
}

/// One step: what it is, and how to run it.
struct Step {
    name: String,
    command: Command,
    /// A cargo component that a fresh machine may lack. Under CI it is required.
    component: Option<&'static str>,
}

pub(crate) fn run(extent: Extent) -> ExitCode {
    let start = Instant::now();
    let mut left_out = Vec::new();
    for step in steps(extent) {
        if let Some(component) = step.component
            && !has(component)
        {
            if std::env::var_os("CI").is_some() {
                eprintln!("xtask: `cargo {component}` is not installed, and CI requires it");
                return ExitCode::FAILURE;
            }
            left_out.push(format!("{} (`cargo {component}` is not installed)", step.name));
            continue;
        }
        if !passes(step) {
            return ExitCode::FAILURE;
        }
    }
    for step in left_out {
        eprintln!("xtask: left out: {step}");
    }
    eprintln!("xtask: all passed in {} s", start.elapsed().as_secs());
    ExitCode::SUCCESS
}

fn steps(extent: Extent) -> Vec<Step> {
    let mut steps = vec![
        step("format", &["fmt", "--all", "--check"]).needs("fmt"),
        step("tidy", &["run", "--quiet", "--package", "xtask", "--", "tidy"]),
        step(
            "lints",
            &["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"],
        )
        .needs("clippy"),
        step("docs", &["doc", "--workspace", "--no-deps", "--all-features"])
            .with("RUSTDOCFLAGS", "-D warnings"),
        step("tests", &["test", "--workspace", "--all-features", "--no-fail-fast"]),
    ];
    if extent == Extent::Everything {
        steps.push(alone("no feature", None));
        let features = crate::tidy::features();
        let name = |feature: &String| format!("feature `{feature}` alone");
        steps.extend(features.iter().map(|feature| alone(&name(feature), Some(feature))));
    }
    steps
}

/// The library with just this feature. By clippy, whose flags reach only our own crates, so that
/// what the lints above have checked of the others need not be built again.
fn alone(name: &str, feature: Option<&String>) -> Step {
    let mut arguments = vec!["clippy", "--package", "tenure", "--lib", "--no-default-features"];
    arguments.extend(feature.iter().flat_map(|feature| ["--features", feature]));
    arguments.extend(["--", "-D", "warnings"]);
    step(name, &arguments).needs("clippy")
}

fn step(name: &str, arguments: &[&str]) -> Step {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).current_dir(crate::tidy::root());
    Step { name: name.to_owned(), command, component: None }
}

impl Step {
    fn needs(mut self, component: &'static str) -> Step {
        self.component = Some(component);
        self
    }

    fn with(mut self, variable: &str, value: &str) -> Step {
        self.command.env(variable, value);
        self
    }
}

fn passes(mut step: Step) -> bool {
    eprintln!("xtask: {}", step.name);
    let start = Instant::now();
    match step.command.status() {
        Ok(status) if status.success() => {
            eprintln!("xtask: {} passed in {} s", step.name, start.elapsed().as_secs());
            true
        }
        Ok(status) => {
            eprintln!("xtask: {} failed: {status}", step.name);
            false
        }
        Err(error) => {
            eprintln!("xtask: {} could not be run: {error}", step.name);
            false
        }
    }
}

fn has(component: &str) -> bool {
    let mut version = step("version", &[component, "--version"]).command;
    version.output().is_ok_and(|output| output.status.success())
}
