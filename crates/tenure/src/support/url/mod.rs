//! The URL: one parser for all backends. A backend takes each option by name and type and then
//! calls `finish`, which refuses what is left and lists what is known.

mod duration;

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

pub use duration::duration;

use crate::error::{Error, Result};
use crate::support::credentials::{Source, UserLogin};
use crate::support::percent;

const ESCAPE: &str = "in a password write `/` as %2F, `?` as %3F, `@` as %40 and `#` as %23, and \
                      elsewhere in the URL `@` too";

/// A parsed URL, `scheme://user:password@hosts/path?option=value`, from which a backend takes what
/// it understands. `Debug` shows scheme and hosts only.
#[derive(Clone)]
pub(crate) struct Url {
    scheme: String,
    login: UserLogin,
    /// `None` in `scheme:path`, empty in `scheme:///path`.
    authority: Option<String>,
    path: String,
    query: Vec<(String, String)>,
    known: Vec<&'static str>,
}

#[allow(dead_code, reason = "which of these are used depends on the backends that are built")]
impl Url {
    /// Takes a URL apart.
    pub(crate) fn parse(url: &str) -> Result<Url> {
        let (scheme, rest) = url.split_once(':').ok_or_else(|| {
            let advice = "a URL starts with a scheme, as in `sqlite:locks.db` or `memory:`";
            Error::invalid(format!("`{}` is not a URL: {advice}", without_secret(url)))
        })?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        if scheme.is_empty() || !scheme.chars().all(plain) {
            return Err(Error::invalid(format!("`{}` is not a URL scheme", scheme.escape_debug())));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.strip_prefix("//") {
            None => (None, rest),
            Some(rest) => {
                let end = rest.find('/').unwrap_or(rest.len());
                (Some(&rest[..end]), &rest[end..])
            }
        };
        // A password with a `/` or `?` in it, as it is: the rest would be taken for a path, an
        // option or a host, and shown.
        let has_host = authority.is_some_and(|hosts| !hosts.is_empty());
        if has_host && (path.contains('@') || query.contains('@')) {
            return Err(Error::invalid(format!("there is an `@` behind the host: {ESCAPE}")));
        }
        let (login, hosts) = match authority.and_then(|a| a.rsplit_once('@')) {
            Some((login, hosts)) => (Some(login), Some(hosts)),
            None => (None, authority),
        };
        let (user, password) = match login.map(|l| l.split_once(':').unwrap_or((l, ""))) {
            Some((user, password)) => (decode(user)?, decode(password)?),
            None => (String::new(), String::new()),
        };
        Ok(Url {
            scheme: scheme.to_ascii_lowercase(),
            login: UserLogin {
                user: Some(user).filter(|text| !text.is_empty()),
                password: Some(password).filter(|text| !text.is_empty()),
                source: None,
            },
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
        self.login.user.as_deref()
    }

    /// The password in front of the host, from `password_file` or from the code.
    pub(crate) fn password(&self) -> Option<&str> {
        self.login.password.as_deref()
    }

    pub(crate) fn set_password(&mut self, secret: String) {
        self.login.password = Some(secret);
    }

    pub(crate) fn set_credentials(&mut self, source: Source) {
        self.login.source = Some(source);
    }

    /// Whether the caller's code gives the credentials.
    pub(crate) fn has_own_credentials(&self) -> bool {
        self.login.source.is_some()
    }

    /// How to log in: by what the URL says, or by the caller's code.
    pub(crate) fn login(&self) -> UserLogin {
        self.login.clone()
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

    /// Whether there is such an option.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.query.iter().any(|(known, _)| known == name)
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
        let named = |error: Error| Error::invalid(format!("option `{name}`: {error}"));
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
            Error::invalid(format!(
                "option `{name}` is `{}`; it can be: {words}",
                text.escape_debug()
            ))
        })
    }

    /// Takes an option that is a whole number in a range.
    ///
    /// # Errors
    ///
    /// `Invalid` if it is not one.
    pub(crate) fn take_number<N>(
        &mut self,
        name: &'static str,
        range: RangeInclusive<N>,
    ) -> Result<Option<N>>
    where
        N: FromStr + PartialOrd + fmt::Display,
    {
        let Some(text) = self.take(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| {
            let (from, to) = (range.start(), range.end());
            let shown = text.escape_debug();
            Error::invalid(format!(
                "option `{name}` is `{shown}`; it is a number from {from} to {to}"
            ))
        })
    }

    /// Refuses every option that no part of the client took.
    ///
    /// # Errors
    ///
    /// `Invalid`, with the name of the first such option and the names that are known.
    pub(crate) fn finish(mut self) -> Result<()> {
        let Some((name, _)) = self.query.first() else { return Ok(()) };
        self.known.sort_unstable();
        Err(Error::invalid(format!(
            "unknown option `{}` in {} URL; known: {}",
            name.escape_debug(),
            self.scheme,
            self.known.join(", ")
        )))
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme)?;
        let Some(hosts) = &self.authority else { return Ok(()) };
        // What is no host may be a login without one.
        let are_hosts = hosts.is_empty() || self.hosts(1).is_ok();
        write!(f, "//{}", if are_hosts { hosts } else { "…" })
    }
}

fn parse_query(query: &str) -> Result<Vec<(String, String)>> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decode(name)?, decode(value)?);
        if pairs.iter().any(|(known, _)| *known == name) {
            return Err(Error::invalid(format!("option `{}` is given twice", name.escape_debug())));
        }
        pairs.push((name, value));
    }
    Ok(pairs)
}

/// What is wrong is said and not shown: it may be a login whose host was forgotten.
fn split_port(text: &str, default_port: u16) -> Result<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let unclosed = || Error::invalid("a host in the URL has a `[` without a `]`");
            let (address, rest) = rest.split_once(']').ok_or_else(unclosed)?;
            if !rest.is_empty() && !rest.starts_with(':') {
                return Err(Error::invalid(
                    "after the `]` of a host in the URL comes `:` and the port",
                ));
            }
            (address.to_owned(), rest.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err(Error::invalid("an IPv6 address in the URL is written in `[` and `]`"));
            }
            Some((host, port)) => (decode(host)?, Some(port)),
            None => (decode(text)?, None),
        },
    };
    if host.is_empty() {
        return Err(Error::invalid("a host is missing in the URL"));
    }
    let port = port.map_or(Some(default_port), |port| port.parse().ok().filter(|port| *port > 0));
    let bad = || Error::invalid("a port in the URL is not a number from 1 to 65535");
    Ok((host, port.ok_or_else(bad)?))
}

fn decode(text: &str) -> Result<String> {
    let unescaped = || {
        Error::invalid("the URL has a `%` that is not followed by two hex digits; write it `%25`")
    };
    let bytes = percent::decode_bytes(text).ok_or_else(unescaped)?;
    String::from_utf8(bytes).map_err(|_| Error::invalid("the URL is not UTF-8 after decoding"))
}

/// The beginning of something that is not a URL, in case a password was pasted in its place.
fn without_secret(url: &str) -> String {
    let start: String = url.chars().take(8).collect();
    let dots = if url.chars().count() > 8 { "…" } else { "" };
    format!("{}{dots}", start.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_comes_apart() {
        let url = "Redis+Sentinel://u%40x:p%3Aw@h1:1,[::1]:2,h3/main%20one?ttl=5s&prefix=a%2F";
        let mut options = Url::parse(url).unwrap();
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
        let options = Url::parse("sqlite:a/b.db").unwrap();
        assert_eq!((options.authority(), options.path()), (None, "a/b.db"));
        let options = Url::parse("sqlite:///a/b.db").unwrap();
        assert_eq!((options.authority(), options.path()), (Some(""), "/a/b.db"));
    }

    #[test]
    fn an_unknown_option_is_named_beside_the_known_ones() {
        let mut options = Url::parse("memory:?pol=3").unwrap();
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
            let error = Url::parse(url).unwrap_err();
            assert!(error.to_string().contains(part), "{url}: {error}");
        }
        for (url, part) in [
            ("redis://h:x", "a port in the URL"),
            ("redis://h:0", "a port in the URL"),
            ("redis://h:65536", "a port in the URL"),
            ("redis://[::1]6380", "comes `:` and the port"),
            ("redis://[::1", "without a `]`"),
            ("redis://::1", "an IPv6 address"),
            ("redis://:6379", "a host is missing"),
            ("redis://a,,b", "a host is missing"),
        ] {
            let error = Url::parse(url).unwrap().hosts(1).unwrap_err();
            assert!(error.to_string().contains(part), "{url}: {error}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let options = Url::parse("redis://me:hunter2@h?password_file=/x").unwrap();
        assert_eq!(format!("{options:?}"), "redis://h");
        let error = Url::parse("hunter2-and-more").unwrap_err();
        assert!(!error.to_string().contains("and-more"), "{error}");
    }

    /// The password is `XQZ…ZQX` with a character in it that was not escaped.
    #[test]
    fn no_part_of_a_password_is_shown_however_the_url_is_wrong() {
        for broken in ["/", "?", "#", "@", "/?", "?a=", ":/", "/0", "&", "/@", "[", "]", ",", "%"] {
            for before in ["redis://:", "redis://user:", "postgres://u%40x:", "etcd://", "zk://u:"]
            {
                for after in ["@localhost:6379/0", "@localhost", "@h1,h2/x?ttl=1s", "@", ""] {
                    let url = format!("{before}XQZ{broken}ZQX{after}");
                    let shown = match Url::parse(&url) {
                        Err(error) => error.to_string(),
                        Ok(options) => match options.hosts(1) {
                            // A login without a host reads as a host.
                            Ok(_) if after.is_empty() || before == "etcd://" => continue,
                            hosts => {
                                let error = hosts.err().map(|error| error.to_string());
                                format!("{options:?} {}", error.unwrap_or_default())
                            }
                        },
                    };
                    assert!(!shown.contains("XQZ") && !shown.contains("ZQX"), "{url}: {shown}");
                }
            }
        }
    }

    #[test]
    fn an_at_sign_elsewhere_is_no_login() {
        let options = Url::parse("sqlite:///home/me@work/locks.db").unwrap();
        assert_eq!(options.path(), "/home/me@work/locks.db");
        assert!(Url::parse("sqlite:me@work.db?owner=me@work").is_ok());
        let mut options = Url::parse("redis://h?owner=me%40work").unwrap();
        assert_eq!(options.take("owner").as_deref(), Some("me@work"));
    }
}
