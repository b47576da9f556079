//! Many requests as one: acquires and releases that are queued on a connection share a script.
//!
//! A script costs the server more before and after it runs than what it does: reading the command,
//! finding the script, converting keys and arguments, writing the response. Where requests are
//! queued anyway, because those before them have no response yet, one script for many of them
//! costs half as much (`lua/batch.lua`). Each has a response of its own, and its caller does not
//! know about the others.
//!
//! A request is queued as the bytes of its own command. Those of its keys and of its other
//! arguments are copied from there into the command of the batch.
//!
//! **The bound.** While it runs a script, a server does nothing else. [`CLAIMS_MAX`] claims are
//! about 0.3 ms if they find their locks free, and at most 2 ms if all of them have to queue.

use bytes::{BufMut, BytesMut};

use super::Request;
use crate::backends::redis::layout::scripts::{BatchScript, KEYS_OF_A_LOCK};

/// Fewer requests than this are sent one by one.
pub(super) const CLAIMS_MIN: usize = 8;
/// How many claims one script has at most.
pub(super) const CLAIMS_MAX: usize = 32;
/// What comes before the keys of a script: `EVALSHA`, its hash, and the number of keys.
const HEADER_STRINGS: usize = 3;

/// Which script a request is, if it may be a part of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchPart {
    /// Of an exclusive claim.
    Acquire,
    /// Of any other claim, or a downgrade: it has two arguments more.
    AcquireMode,
    Release,
}

/// The keys and the other arguments of a request, as they stand in its command.
struct CommandParts<'a> {
    kind: &'a [u8],
    keys: &'a [u8],
    arguments: &'a [u8],
    count: usize,
}

/// Writes one command for all of these requests. `false` if one of them cannot be a part of it;
/// then nothing is written.
pub(super) fn write(
    requests: &[Request],
    script: &BatchScript,
    by_text: bool,
    output: &mut BytesMut,
) -> bool {
    let parts: Option<Vec<CommandParts<'_>>> = requests.iter().map(CommandParts::of).collect();
    let Some(parts) = parts else { return false };
    let keys = KEYS_OF_A_LOCK * parts.len();
    let arguments: usize = parts.iter().map(|part| 1 + part.count).sum();
    output.put_slice(format!("*{}\r\n", HEADER_STRINGS + keys + arguments).as_bytes());
    if by_text {
        put_string(output, "EVAL");
        put_string(output, script.text());
    } else {
        put_string(output, "EVALSHA");
        put_string(output, script.hash());
    }
    put_string(output, &keys.to_string());
    parts.iter().for_each(|part| output.put_slice(part.keys));
    for part in &parts {
        output.put_slice(part.kind);
        output.put_slice(part.arguments);
    }
    true
}

fn put_string(output: &mut BytesMut, text: &str) {
    output.put_slice(format!("${}\r\n", text.len()).as_bytes());
    output.put_slice(text.as_bytes());
    output.put_slice(b"\r\n");
}

impl CommandParts<'_> {
    fn of(request: &Request) -> Option<CommandParts<'_>> {
        let kind: &[u8] = match request.part? {
            BatchPart::Acquire => b"$1\r\na\r\n",
            BatchPart::AcquireMode => b"$1\r\nm\r\n",
            BatchPart::Release => b"$1\r\nr\r\n",
        };
        let (strings, header) = number(request.bytes.strip_prefix(b"*")?)?;
        let keys = skip(header, HEADER_STRINGS)?;
        let arguments = skip(keys, KEYS_OF_A_LOCK)?;
        let keys = &keys[..keys.len() - arguments.len()];
        let count = strings.checked_sub(HEADER_STRINGS + KEYS_OF_A_LOCK)?;
        Some(CommandParts { kind, keys, arguments, count })
    }
}

/// What comes after so many strings.
fn skip(mut bytes: &[u8], strings: usize) -> Option<&[u8]> {
    for _ in 0..strings {
        let (length, rest) = number(bytes.strip_prefix(b"$")?)?;
        bytes = rest.get(length + b"\r\n".len()..)?;
    }
    Some(bytes)
}

/// A number, and what comes after its line.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\r')?;
    let digits = std::str::from_utf8(&bytes[..end]).ok()?;
    Some((digits.parse().ok()?, bytes.get(end + b"\r\n".len()..)?))
}

/// Into how many claims a run of requests is divided: as few scripts as possible, of equal size.
pub(super) fn size(requests: usize) -> usize {
    requests.div_ceil(requests.div_ceil(CLAIMS_MAX).max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_of_equal_size_and_bounded() {
        for (requests, sizes) in [(8, 8), (32, 32), (33, 17), (64, 32), (65, 22), (1000, 32)] {
            assert_eq!(size(requests), sizes, "{requests}");
        }
    }

    #[test]
    fn what_is_no_command_is_no_part() {
        for bytes in ["", "*", "*9\r\n", "*9\r\n$3\r\nab", "*2\r\n$1\r\na\r\n$1\r\nb\r\n", "$1"] {
            let (reply, _receiver) = tokio::sync::oneshot::channel();
            let request = Request::new(bytes.into(), Some(BatchPart::Release), reply);
            assert!(CommandParts::of(&request).is_none(), "{bytes:?}");
        }
    }
}
