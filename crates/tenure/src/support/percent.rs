//! Percent-encoding: of keys in the names that a server stores, and of URLs.

/// Appends the character, or its UTF-8 bytes as `%XX`.
pub(crate) fn push_escaped(text: &mut String, c: char) {
    let mut bytes = [0; 4];
    for byte in c.encode_utf8(&mut bytes).bytes() {
        text.push('%');
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(b"0123456789ABCDEF"[usize::from(digit)]));
        }
    }
}

/// Encodes every character for which `escaped` says so, by its position in bytes and itself. What
/// is to be decoded again has to escape `%` too.
pub(crate) fn encode(text: &str, escaped: impl Fn(usize, char) -> bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        if escaped(at, c) {
            push_escaped(&mut encoded, c);
        } else {
            encoded.push(c);
        }
    }
    encoded
}

/// The bytes behind an encoded text; `None` if a `%` is not followed by two hex digits.
pub(crate) fn decode_bytes(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, tail @ ..] = rest else { return None };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push((digit(*high)? * 16 + digit(*low)?) as u8);
        rest = tail;
    }
    Some(bytes)
}

/// The text behind an encoded one; `None` if it is not encoded properly, or not UTF-8.
pub(crate) fn decode(text: &str) -> Option<String> {
    String::from_utf8(decode_bytes(text)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_survives_its_encoding() {
        for text in ["", "a", "a/b", "100%", "%2F", "日本 🦀", "/", "\0\u{7f}"] {
            let encoded = encode(text, |_, c| c == '%' || !c.is_ascii_alphanumeric());
            assert!(encoded.bytes().all(|b| b == b'%' || b.is_ascii_alphanumeric()), "{encoded}");
            assert_eq!(decode(&encoded).as_deref(), Some(text));
        }
        assert_eq!(encode("é/", |_, c| c != '/'), "%C3%A9/");
        assert_eq!(encode("..", |at, _| at == 0), "%2E.");
    }

    #[test]
    fn what_is_not_encoded_properly_is_refused() {
        for text in ["%", "%2", "a%zz", "%+F", "%ff"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
