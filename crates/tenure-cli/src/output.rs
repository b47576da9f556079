//! Output: data on stdout, messages on stderr, colour on terminals only. Text that other clients
//! wrote is escaped, so that it cannot control the terminal.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::failure::Failure;

/// Text of another client, with every character escaped that could control a terminal or break a
/// line of a log.
pub(crate) struct Harmless<'a>(pub(crate) &'a str);

impl fmt::Display for Harmless<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if is_control(c) { write!(f, "{}", c.escape_unicode())? } else { write!(f, "{c}")? }
        }
        Ok(())
    }
}

/// Whether a character controls a terminal: control characters, and marks that change the direction
/// of text or break lines.
fn is_control(c: char) -> bool {
    let is_direction_mark =
        matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2066}'..='\u{2069}');
    c.is_control() || is_direction_mark || matches!(c, '\u{2028}'..='\u{202e}')
}

/// Writes text to stdout.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    Ok(ignore_closed_reader(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))?)
}

/// A reader that has closed the pipe has read enough. That is not an error and does not change the
/// exit code.
fn ignore_closed_reader(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Writes a value to stdout as one line of JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&format!("{}\n", json(value)))
}

/// One line of JSON. Plain JSON does not escape C1 controls and direction marks; here they become
/// `\u` escapes, so that the line has the same value and cannot control a terminal.
pub(crate) fn json(value: &impl Serialize) -> String {
    let plain = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
    if !plain.contains(is_control) {
        return plain;
    }
    let escape = |c: char| {
        if is_control(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() }
    };
    plain.chars().map(escape).collect()
}

/// Writes a message for the user to stderr. A closed stderr is no reason to stop.
pub(crate) fn say(message: &dyn fmt::Display) {
    let name = Paint::stderr().bold("tenure:");
    let _stderr_closed = writeln!(io::stderr().lock(), "{name} {message}");
}

/// Writes what to try next, below a message.
pub(crate) fn advise(advice: &dyn fmt::Display) {
    let _stderr_closed = writeln!(io::stderr().lock(), "  try: {advice}");
}

/// Whether a stream gets colour.
#[derive(Clone, Copy)]
pub(crate) struct Paint(bool);

impl Paint {
    pub(crate) fn stdout() -> Paint {
        Paint(io::stdout().is_terminal() && colour_is_allowed())
    }

    pub(crate) fn stderr() -> Paint {
        Paint(io::stderr().is_terminal() && colour_is_allowed())
    }

    /// Whether the stream gets colour.
    #[cfg(feature = "lab")]
    pub(crate) fn wanted(self) -> bool {
        self.0
    }

    pub(crate) fn bold(self, text: &str) -> String {
        if self.0 { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}

fn colour_is_allowed() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Prints the help or the version, which clap reports as an error.
pub(crate) fn print_help(help: &clap::Error) -> Result<(), Failure> {
    Ok(ignore_closed_reader(help.print())?)
}

/// A duration as short text, with about two digits.
pub(crate) struct Short(pub(crate) Duration);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let text = match seconds {
            0..10 => format!("{:.1}s", self.0.as_secs_f64()),
            10..60 => format!("{seconds}s"),
            60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
            3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
            _ => format!("{}d{:02}h", seconds / 86400, seconds / 3600 % 24),
        };
        f.pad(&text)
    }
}

/// A time as `2026-11-17T22:07:09.123Z`: days of the Gregorian calendar, counted in years that
/// begin in March, so that the leap day is the last one.
pub(crate) fn utc(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let millis = since.subsec_millis();
    // From 1 March of the year 0, in eras of 400 years.
    let days = seconds / 86400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march = (5 * day + 2) / 153;
    let day = day - (153 * march + 2) / 5 + 1;
    let month = if march < 10 { march + 3 } else { march - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_another_client_cannot_control_the_terminal() {
        let shown = Harmless("a\u{1b}[31m\u{9b}2J\u{202e}\nb").to_string();
        assert!(!shown.contains(is_control), "{shown:?}");
        assert!(shown.starts_with('a') && shown.ends_with('b'));
    }

    #[test]
    fn json_has_the_same_value_without_control_characters() {
        let text = "a\u{9b}2J\u{202e}é🦀\u{7f}";
        let line = json(&text);
        assert!(!line.contains(is_control), "{line:?}");
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
    }

    #[test]
    fn durations_are_shown_with_about_two_digits() {
        for (millis, text) in
            [(0, "0.0s"), (1234, "1.2s"), (59_900, "59s"), (61_000, "1m01s"), (90_061_000, "1d01h")]
        {
            assert_eq!(Short(Duration::from_millis(millis)).to_string(), text);
        }
    }

    #[test]
    fn times_follow_the_calendar() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_001, "2000-02-29T00:00:00.001Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (1_709_251_200_000, "2024-03-01T00:00:00.000Z"),
            (4_107_542_399_000, "2100-02-28T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(SystemTime::UNIX_EPOCH + Duration::from_millis(millis)), text);
        }
    }
}
