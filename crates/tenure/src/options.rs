//! The URL: one parser for all backends. A backend takes each option by name and type and then
//! calls `finish`, which refuses what is left and lists what is known.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// A parsed URL, `scheme://user:password@hosts/path?option=value`, from which a backend takes what
/// it understands. `Debug` shows scheme and hosts only.
#[derive(Clone)]
pub(crate) struct Options {
    scheme: String,
    user: Option<String>,
    password: Option<String>,
    /// `None` in `scheme:path`, empty in `scheme:///path`.
    authority: Option<String>,
    path: String,
    query: Vec<(String, String)>,
    known: Vec<&'static str>,
}

#[allow(dead_code, reason = "which of these are used depends on the backends that are built")]
impl Options {
    /// Takes a URL apart.
    pub(crate) fn parse(url: &str) -> Result<Options> {
        let (scheme, rest) = url.split_once(':').ok_or_else(|| {
            let advice = "a URL starts with a scheme, as in `sqlite:locks.db` or `memory:`";
            invalid(format!("`{}` is not a URL: {advice}", without_secret(url)))
        })?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        if scheme.is_empty() || !scheme.chars().all(plain) {
            return Err(invalid(format!("`{}` is not a URL scheme", scheme.escape_debug())));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.strip_prefix("//") {
            None => (None, rest),
            Some(rest) => {
                let end = rest.find('/').unwrap_or(rest.len());
                (Some(&rest[..end]), &rest[end..])
            }
        };
        let (login, hosts) = match authority.and_then(|a| a.rsplit_once('@')) {
            Some((login, hosts)) => (Some(login), Some(hosts)),
            None => (None, authority),
        };
        let (user, password) = match login.map(|l| l.split_once(':').unwrap_or((l, ""))) {
            Some((user, password)) => (decode(user)?, decode(password)?),
            None => (String::new(), String::new()),
        };
        Ok(Options {
            scheme: scheme.to_ascii_lowercase(),
            user: Some(user).filter(|text| !text.is_empty()),
            password: Some(password).filter(|text| !text.is_empty()),
            authority: hosts.map(str::to_owned),
            path: decode(path)?,
            query: parse_query(query)?,
            known: Vec::new(),
        })
    }

    /// The scheme, in lower case.
    pub(crate) fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The user in front of the host.
    pub(crate) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password in front of the host, from `password_file` or from the code.
    pub(crate) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    pub(crate) fn set_password(&mut self, secret: String) {
        self.password = Some(secret);
    }

    /// What stands between `//` and the path, without the login: `None` if there is no `//`.
    pub(crate) fn authority(&self) -> Option<&str> {
        self.authority.as_deref()
    }

    /// The hosts with their ports, for servers that are reached over a network.
    ///
    /// # Errors
    ///
    /// `Invalid` if a port is not a number.
    pub(crate) fn hosts(&self, default_port: u16) -> Result<Vec<(String, u16)>> {
        let list = self.authority.as_deref().unwrap_or("");
        let list = if list.is_empty() { "127.0.0.1" } else { list };
        list.split(',').map(|host| split_port(host, default_port)).collect()
    }

    /// The path, percent-decoded. It belongs to the server: a file, a database, a chroot.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Takes an option as text.
    pub(crate) fn take(&mut self, name: &'static str) -> Option<String> {
        self.known.push(name);
        let at = self.query.iter().position(|(known, _)| known == name)?;
        Some(self.query.remove(at).1)
    }

    /// Takes an option as a duration such as `10s` or `250ms`.
    ///
    /// # Errors
    ///
    /// `Invalid` if it is not one.
    pub(crate) fn take_duration(&mut self, name: &'static str) -> Result<Option<Duration>> {
        let Some(text) = self.take(name) else { return Ok(None) };
        let named = |error: Error| invalid(format!("option `{name}`: {error}"));
        duration(&text).map(Some).map_err(named)
    }

    /// Takes an option that is one of a few words.
    ///
    /// # Errors
    ///
    /// `Invalid` if it is none of them.
    pub(crate) fn take_word(
        &mut self,
        name: &'static str,
        words: &[&'static str],
    ) -> Result<Option<&'static str>> {
        let Some(text) = self.take(name) else { return Ok(None) };
        let found = words.iter().find(|word| **word == text);
        found.copied().map(Some).ok_or_else(|| {
            let words = words.join(", ");
            invalid(format!("option `{name}` is `{}`; it can be: {words}", text.escape_debug()))
        })
    }

    /// Refuses every option that nobody took.
    ///
    /// # Errors
    ///
    /// `Invalid`, with the name of the first such option and the names that are known.
    pub(crate) fn finish(mut self) -> Result<()> {
        let Some((name, _)) = self.query.first() else { return Ok(()) };
        self.known.sort_unstable();
        Err(invalid(format!(
            "unknown option `{}` in {} URL; known: {}",
            name.escape_debug(),
            self.scheme,
            self.known.join(", ")
        )))
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme)?;
        match &self.authority {
            Some(hosts) => write!(f, "//{hosts}"),
            None => Ok(()),
        }
    }
}

/// Reads a duration such as `250ms`, `10s`, `1m30s`, `2h` or `1d`.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] for anything else, a number without a unit included.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(tenure::duration("1m30s")?, Duration::from_secs(90));
/// assert!(tenure::duration("30").is_err());
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn duration(text: &str) -> Result<Duration> {
    let bad = || {
        let shown = text.escape_debug();
        invalid(format!("`{shown}` is not a duration; write it as in 250ms, 10s, 1m30s or 2h"))
    };
    let (mut rest, mut total) = (text, Duration::ZERO);
    if rest.is_empty() {
        return Err(bad());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let (number, tail) = rest.split_at(digits);
        let unit = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let seconds = match unit {
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => return Err(bad()),
        };
        let number: f64 = number.parse().map_err(|_| bad())?;
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| bad())?;
        total = total.checked_add(part).ok_or_else(bad)?;
        rest = tail;
    }
    Ok(total)
}

fn parse_query(query: &str) -> Result<Vec<(String, String)>> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decode(name)?, decode(value)?);
        if pairs.iter().any(|(known, _)| *known == name) {
            return Err(invalid(format!("option `{}` is given twice", name.escape_debug())));
        }
        pairs.push((name, value));
    }
    Ok(pairs)
}

fn split_port(host: &str, default_port: u16) -> Result<(String, u16)> {
    let bad = |port: &str| invalid(format!("`{}` is not a port", port.escape_debug()));
    if let Some(rest) = host.strip_prefix('[') {
        let (address, port) = rest.split_once(']').ok_or_else(|| bad(host))?;
        return match port.strip_prefix(':') {
            Some(port) => Ok((address.to_owned(), port.parse().map_err(|_| bad(port))?)),
            None => Ok((address.to_owned(), default_port)),
        };
    }
    match host.rsplit_once(':') {
        Some((host, port)) => Ok((decode(host)?, port.parse().map_err(|_| bad(port))?)),
        None => Ok((decode(host)?, default_port)),
    }
}

fn decode(text: &str) -> Result<String> {
    let bad =
        || invalid("the URL has a `%` that is not followed by two hex digits; write it `%25`");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, tail @ ..] = rest else { return Err(bad()) };
        let digit = |byte: &u8| (*byte as char).to_digit(16).ok_or_else(bad);
        bytes.push((digit(high)? * 16 + digit(low)?) as u8);
        rest = tail;
    }
    String::from_utf8(bytes).map_err(|_| invalid("the URL is not UTF-8 after decoding"))
}

/// The beginning of something that is not a URL, in case a password was pasted in its place.
fn without_secret(url: &str) -> String {
    let start: String = url.chars().take(8).collect();
    let dots = if url.chars().count() > 8 { "…" } else { "" };
    format!("{}{dots}", start.escape_debug())
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_comes_apart() {
        let url = "Redis+Sentinel://u%40x:p%3Aw@h1:1,[::1]:2,h3/main%20one?ttl=5s&prefix=a%2F";
        let mut options = Options::parse(url).unwrap();
        assert_eq!(options.scheme(), "redis+sentinel");
        assert_eq!(options.user(), Some("u@x"));
        assert_eq!(options.password(), Some("p:w"));
        let hosts = options.hosts(6379).unwrap();
        assert_eq!(hosts, [("h1".into(), 1), ("::1".into(), 2), ("h3".into(), 6379)]);
        assert_eq!(options.path(), "/main one");
        assert_eq!(options.take_duration("ttl").unwrap(), Some(Duration::from_secs(5)));
        assert_eq!(options.take("prefix").as_deref(), Some("a/"));
        options.finish().unwrap();
    }

    #[test]
    fn a_path_needs_no_host() {
        let options = Options::parse("sqlite:a/b.db").unwrap();
        assert_eq!((options.authority(), options.path()), (None, "a/b.db"));
        let options = Options::parse("sqlite:///a/b.db").unwrap();
        assert_eq!((options.authority(), options.path()), (Some(""), "/a/b.db"));
    }

    #[test]
    fn an_unknown_option_is_named_beside_the_known_ones() {
        let mut options = Options::parse("memory:?pol=3").unwrap();
        assert_eq!(options.take("ttl"), None);
        assert_eq!(options.take("pool"), None);
        let error = options.finish().unwrap_err().to_string();
        assert_eq!(error, "unknown option `pol` in memory URL; known: pool, ttl");
    }

    #[test]
    fn a_bad_url_says_what_is_wrong_with_it() {
        for (url, part) in [
            ("nothing", "starts with a scheme"),
            ("a b:x", "not a URL scheme"),
            ("memory:?a=1&a=2", "given twice"),
            ("sqlite:100%", "%25"),
            ("sqlite:%ff", "not UTF-8"),
        ] {
            let error = Options::parse(url).unwrap_err();
            assert!(error.to_string().contains(part), "{url}: {error}");
        }
        let error = Options::parse("redis://h:x").unwrap().hosts(1).unwrap_err();
        assert!(error.to_string().contains("not a port"), "{error}");
    }

    #[test]
    fn secrets_are_not_shown() {
        let options = Options::parse("redis://me:hunter2@h?password_file=/x").unwrap();
        assert_eq!(format!("{options:?}"), "redis://h");
        let error = Options::parse("hunter2-and-more").unwrap_err();
        assert!(!error.to_string().contains("and-more"), "{error}");
    }

    #[test]
    fn durations_need_a_unit() {
        for (text, millis) in
            [("250ms", 250), ("10s", 10_000), ("1.5s", 1500), ("1h1m1s", 3_661_000)]
        {
            assert_eq!(duration(text).unwrap(), Duration::from_millis(millis));
        }
        for text in ["", "10", "s", "-1s", "1x", "1s ", "99999999999999999999h", "1e3s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
