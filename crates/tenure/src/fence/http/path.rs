//! One name for all ways to write a path.

use ::http::request::Parts;

/// The path of a request as the name of a resource: `/stock/42` for `/stock/%34%32`, `/stock/42/`,
/// `//stock/./42` and `/stock/x/../42`. A percent sign and a slash that are part of a segment stay
/// `%25` and `%2F`, so that different segments have different names.
///
/// A router may map more paths than these to one resource, such as `/stock/042` for a number, or
/// letters of another case. Then name the resource by what your router makes of the path.
///
/// # Examples
///
/// ```
/// use tenure::fence::http::path;
///
/// for sent in ["/stock/42", "/stock/%34%32", "/stock/42/", "//stock/./42", "/x/../stock/42?a=b"] {
///     let (parts, ()) = http::Request::get(sent).body(()).unwrap().into_parts();
///     assert_eq!(path(&parts), "/stock/42");
/// }
/// ```
pub fn path(request: &Parts) -> String {
    let mut segments: Vec<Vec<u8>> = Vec::new();
    for segment in request.uri.path().split('/').map(decoded) {
        match segment.as_slice() {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    let names = segments.iter().map(|segment| format!("/{}", encoded(segment)));
    let name: String = names.collect();
    if name.is_empty() { "/".to_owned() } else { name }
}

/// Decodes one segment. A `%` that is not followed by two hex digits stays as it is, which is why
/// this is not `support::percent`.
fn decoded(segment: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let [first, tail @ ..] = rest {
        let digit = |at: usize| tail.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

/// Encodes a segment so that it has one spelling only.
fn encoded(segment: &[u8]) -> String {
    let mut text = String::with_capacity(segment.len());
    for chunk in segment.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '%' => text.push_str("%25"),
                '/' => text.push_str("%2F"),
                _ => text.push(char),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(sent: &str) -> String {
        path(&::http::Request::get(sent).body(()).unwrap().into_parts().0)
    }

    #[test]
    fn different_segments_have_different_names() {
        let sent =
            ["/a/b", "/a%2Fb", "/a%252Fb", "/a%25b", "/a%b", "/a", "/%ff", "/%FE", "/A", "/"];
        let mut names: Vec<_> = sent.map(named).into();
        names.sort();
        names.dedup();
        // `%b` is no escape: it is a percent sign, as `%25` is.
        assert_eq!(names.len(), sent.len() - 1, "{names:?}");
    }

    #[test]
    fn one_segment_has_one_name_however_it_is_written() {
        assert_eq!(named("/caf%C3%A9/%61%3a"), named("/caf%c3%a9/a:"));
        assert_eq!(named("/%2e%2e/%2E/a"), "/a");
        assert_eq!(named("/%ff"), named("/%FF"));
        assert_eq!(named("/.."), "/");
    }
}
