//! What a holder tells operators and other clients about itself.

use std::sync::{Arc, OnceLock};

/// Who a holder is, for operators and other clients: stored beside the claim where the server can.
///
/// # Examples
///
/// ```
/// use tenure::backend::HolderInfo;
///
/// let info = HolderInfo::new("web-3", "host\ta", 71, "deploy of v42");
/// assert_eq!(HolderInfo::decode(&info.encode()), info);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HolderInfo(Arc<Parts>);

/// The start of the text of a lock that `tenure run` holds; the pid follows.
const RUN_PREFIX: &str = "[run ";

/// Behind one pointer, because most locks of a client share it.
#[derive(Debug, Default)]
struct Parts {
    name: Arc<str>,
    host: Arc<str>,
    pid: u32,
    text: Arc<str>,
    encoded: OnceLock<String>,
}

impl PartialEq for Parts {
    fn eq(&self, other: &Parts) -> bool {
        let fields = |parts: &Parts| (parts.name.clone(), parts.host.clone(), parts.text.clone());
        self.pid == other.pid && fields(self) == fields(other)
    }
}

impl Eq for Parts {}

impl HolderInfo {
    /// Name, host, process id and free text of a holder.
    pub fn new(
        name: impl Into<Arc<str>>,
        host: impl Into<Arc<str>>,
        pid: u32,
        text: impl Into<Arc<str>>,
    ) -> HolderInfo {
        HolderInfo::from_parts(name.into(), host.into(), pid, text.into())
    }

    fn from_parts(name: Arc<str>, host: Arc<str>, pid: u32, text: Arc<str>) -> HolderInfo {
        HolderInfo(Arc::new(Parts { name, host, pid, text, encoded: OnceLock::new() }))
    }

    /// The name of the holder: its program, unless it chose another.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The machine it runs on.
    pub fn host(&self) -> &str {
        &self.0.host
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.pid
    }

    /// Free text.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The note of a lock that `tenure run` holds: the pid of its launcher, and the user's text.
    /// The lock is held by its supervisor, a process that ignores signals; to end the job, an
    /// operator signals the launcher. [`Holder`](crate::Holder) and [`Waiter`](crate::Waiter) show
    /// that pid and the text without this mark.
    ///
    /// # Examples
    ///
    /// ```
    /// use tenure::{backend::HolderInfo, Holder};
    ///
    /// let info = HolderInfo::new("backup", "host-a", 72, HolderInfo::run_note(71, "nightly"));
    /// let holder = Holder::new(&info);
    /// assert_eq!((holder.pid, holder.note.as_str()), (71, "nightly"));
    /// ```
    pub fn run_note(launcher: u32, text: &str) -> String {
        format!("{RUN_PREFIX}{launcher}] {text}").trim_end().to_owned()
    }

    /// The pid to signal, and the note that the user gave. A text that no `tenure run` wrote is the
    /// note as it is.
    pub(crate) fn pid_and_note(&self) -> (u32, &str) {
        let parse = || {
            let (pid, text) = self.text().strip_prefix(RUN_PREFIX)?.split_once(']')?;
            let is_number = !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit());
            let pid = pid.parse().ok().filter(|pid| is_number && *pid > 0)?;
            Some((pid, text.strip_prefix(' ').unwrap_or(text)))
        };
        parse().unwrap_or((self.pid(), self.text()))
    }

    /// This holder with another free text.
    pub(crate) fn with_text(&self, text: Arc<str>) -> HolderInfo {
        if *text == *self.0.text {
            return self.clone();
        }
        let parts = &self.0;
        HolderInfo::from_parts(parts.name.clone(), parts.host.clone(), parts.pid, text)
    }

    /// All of it as one line of text, for servers that store one value. Fields are separated by
    /// tabs; a backslash escapes what would break that.
    pub fn encode(&self) -> String {
        self.encoded().to_owned()
    }

    /// [`encode`](HolderInfo::encode), done once for all locks that share this value.
    pub(crate) fn encoded(&self) -> &str {
        self.0.encoded.get_or_init(|| {
            let pid = self.pid().to_string();
            [self.name(), self.host(), &pid, self.text()].map(escape).join("\t")
        })
    }

    /// What [`encode`](HolderInfo::encode) wrote. Text that it did not write becomes the free text.
    pub fn decode(line: &str) -> HolderInfo {
        let fields: Vec<_> = line.split('\t').collect();
        match fields[..] {
            [name, host, pid, text] => match pid.parse() {
                Ok(pid) => HolderInfo::new(unescape(name), unescape(host), pid, unescape(text)),
                Err(_) => HolderInfo::new("", "", 0, line),
            },
            _ => HolderInfo::new("", "", 0, line),
        }
    }
}

fn escape(field: &str) -> String {
    field.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n")
}

fn unescape(field: &str) -> String {
    let mut plain = String::with_capacity(field.len());
    let mut chars = field.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('t') => plain.push('\t'),
                Some('n') => plain.push('\n'),
                Some(other) => plain.push(other),
                None => {}
            },
            (c, false) => plain.push(c),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_of_run_is_read_back_and_other_text_is_not_changed() {
        for text in ["", "deploy of v42", "[x] y", "[run 5] z"] {
            let info = HolderInfo::new("sh", "h", 7, HolderInfo::run_note(4711, text));
            assert_eq!(info.pid_and_note(), (4711, text));
        }
        for text in ["", "plain", "[run x] y", "[run 7", "[run +7] y", "[run 0] y", "[run ] y"] {
            assert_eq!(HolderInfo::new("sh", "h", 7, text).pid_and_note(), (7, text));
        }
    }

    #[test]
    fn a_note_survives_its_encoding_whatever_it_holds() {
        for text in ["", "plain", "tab\there", "back\\slash\\t", "line\nfeed", "\\", "é🦀"] {
            let note = HolderInfo::new(text, "h", 7, text);
            assert_eq!(HolderInfo::decode(&note.encode()), note, "{text:?}");
        }
    }

    #[test]
    fn a_foreign_note_becomes_the_free_text() {
        for line in ["", "hello", "a\tb", "a\tb\tno number\td"] {
            assert_eq!(HolderInfo::decode(line).text(), line);
        }
    }
}
