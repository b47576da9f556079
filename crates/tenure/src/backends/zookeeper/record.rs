//! The data of a node: what people may know of a claim. Curator and others do not read it.

use std::net::IpAddr;
use std::time::Duration;

use crate::backend::Note;

/// The note, and for how long the server keeps the node without hearing from its session.
pub(super) fn encode(note: &Note, timeout: Duration) -> Vec<u8> {
    format!("{}\t{}", note.encode(), timeout.as_millis()).into_bytes()
}

/// What [`encode`] wrote. Curator writes the address of the machine; any other text is shown.
pub(super) fn decode(data: &[u8]) -> (Note, Option<Duration>) {
    let text = String::from_utf8_lossy(data);
    if let Some((note, millis)) = text.rsplit_once('\t')
        && let Ok(millis) = millis.parse()
        && note.matches('\t').count() == 3
    {
        return (Note::decode(note), Some(Duration::from_millis(millis)));
    }
    match text.parse::<IpAddr>() {
        Ok(address) => (Note::new("", address.to_string(), 0, ""), None),
        Err(_) => (Note::decode(&text), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_and_a_foreign_one_is_shown() {
        let note = Note::new("web\t3", "host-a", 71, "deploy\t1\n");
        let timeout = Duration::from_secs(15);
        assert_eq!(decode(&encode(&note, timeout)), (note, Some(timeout)));
        assert_eq!(decode(b"10.0.0.7").0.host(), "10.0.0.7");
        assert_eq!(decode(b"job 7").0.text(), "job 7");
        assert_eq!(decode(b"").0, Note::default());
        assert_eq!(decode(b"\xff\tx").1, None);
    }
}
