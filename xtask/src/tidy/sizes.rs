//! The sizes that CONTRIBUTING promises: of files and of functions.

use std::path::Path;

/// The longest file, in lines.
pub(super) const FILE_LINES: usize = 400;
/// The longest function, in lines, from its signature to its closing brace.
pub(super) const FUNCTION_LINES: usize = 60;

pub(super) fn faults(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let count = text.lines().count();
    if count > FILE_LINES {
        faults.push(format!("{name}: has {count} lines, more than {FILE_LINES}; split it"));
    }
    let lines: Vec<&str> = text.lines().collect();
    for (number, line) in lines.iter().enumerate() {
        let Some(function) = function_name(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let closing = format!("{indent}}}");
        // A function without a body ends at its semicolon, long before any closing brace.
        let end = lines[number..].iter().position(|line| *line == closing || line.ends_with(';'));
        let is_body = |end: &usize| lines[number + end] == closing;
        let end = end.filter(is_body).or_else(|| {
            lines[number..].iter().position(|line| *line == closing).filter(|_| {
                let mut signature = lines[number..].iter().take_while(|line| !line.ends_with('{'));
                !signature.any(|line| line.ends_with(';'))
            })
        });
        let Some(end) = end else { continue };
        if end + 1 > FUNCTION_LINES {
            let number = number + 1;
            faults.push(format!(
                "{name}:{number}: `{function}` has {} lines, more than {FUNCTION_LINES}",
                end + 1
            ));
        }
    }
    faults
}

/// CONTRIBUTING says the numbers that are checked.
pub(super) fn promise_faults(root: &Path) -> Vec<String> {
    let promise =
        format!("Functions of at most {FUNCTION_LINES} lines, files of at most {FILE_LINES}");
    if super::read(&root.join("CONTRIBUTING.md")).contains(&promise) {
        return Vec::new();
    }
    vec![format!("CONTRIBUTING.md: does not say `{promise}`")]
}

/// The name of the function whose signature begins in this line.
fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    for word in ["pub(crate) ", "pub(super) ", "pub ", "const ", "async ", "unsafe "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let name = rest.strip_prefix("fn ")?;
    name.split(['(', '<']).next()
}
