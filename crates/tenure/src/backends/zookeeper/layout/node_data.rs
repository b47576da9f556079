//! The data of a claim's node: what operators see in listings, and what others may do about the
//! claim. Curator and other clients do not read it.

use std::net::IpAddr;
use std::time::Duration;

use crate::backend::HolderInfo;

/// That others need not wait for the end of a node. Earlier versions do not know the marks: they go
/// on waiting, and show the data as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// An exclusive holder was made shared: readers pass.
    Shared,
    /// A claim to permits that had to wait holds now: the next one may follow.
    Held,
}

impl Mark {
    fn word(self) -> &'static str {
        match self {
            Mark::Shared => "shared",
            Mark::Held => "held",
        }
    }

    fn parse(word: &str) -> Option<Mark> {
        [Mark::Shared, Mark::Held].into_iter().find(|mark| mark.word() == word)
    }
}

/// The data of a node, as they were read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeData {
    pub(crate) info: HolderInfo,
    /// The timeout of the session that created it, if the data say so.
    pub(crate) timeout: Option<Duration>,
    pub(crate) mark: Option<Mark>,
}

/// The holder info, the timeout of the session (for how long the server keeps the node without
/// hearing from the client), and perhaps a mark.
pub(crate) fn encode(info: &HolderInfo, timeout: Duration, mark: Option<Mark>) -> Vec<u8> {
    let mut text = format!("{}\t{}", info.encode(), timeout.as_millis());
    if let Some(mark) = mark {
        text.push('\t');
        text.push_str(mark.word());
    }
    text.into_bytes()
}

/// Decodes the data of any node. Curator writes the address of its machine, which is shown as the
/// host; any other text is shown as it is.
pub(crate) fn decode(data: &[u8]) -> NodeData {
    let text = String::from_utf8_lossy(data);
    if let Some(decoded) = decode_own(&text) {
        return decoded;
    }
    let info = match text.parse::<IpAddr>() {
        Ok(address) => HolderInfo::new("", address.to_string(), 0, ""),
        Err(_) => HolderInfo::decode(&text),
    };
    NodeData { info, ..NodeData::default() }
}

/// What [`encode`] wrote.
fn decode_own(text: &str) -> Option<NodeData> {
    let (rest, last) = text.rsplit_once('\t')?;
    let mark = Mark::parse(last);
    let (info, millis) = if mark.is_some() { rest.rsplit_once('\t')? } else { (rest, last) };
    let timeout = Some(Duration::from_millis(millis.parse().ok()?));
    let is_info = info.matches('\t').count() == 3;
    is_info.then(|| NodeData { info: HolderInfo::decode(info), timeout, mark })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_decodes_again_and_foreign_data_is_shown() {
        let info = HolderInfo::new("web\t3", "host-a", 71, "deploy\t1\n");
        let timeout = Some(Duration::from_secs(15));
        for mark in [None, Some(Mark::Shared), Some(Mark::Held)] {
            let data = encode(&info, Duration::from_secs(15), mark);
            assert_eq!(decode(&data), NodeData { info: info.clone(), timeout, mark });
        }
        assert_eq!(decode(b"10.0.0.7").info.host(), "10.0.0.7");
        assert_eq!(decode(b"job 7").info.text(), "job 7");
        assert_eq!(decode(b""), NodeData::default());
        assert_eq!(decode(b"\xff\tx").timeout, None);
    }

    #[test]
    fn only_data_of_tenure_have_a_mark() {
        for foreign in ["shared", "job\tshared", "7\theld", "a\tb\tc\t7\tshared", "__REVOKE__"] {
            assert_eq!(decode(foreign.as_bytes()).mark, None, "{foreign}");
        }
        // A note cannot make one: its tabs are escaped.
        let info = HolderInfo::new("a", "b", 1, "x\t15000\tshared");
        assert_eq!(decode(&encode(&info, Duration::from_secs(15), None)).mark, None);
    }
}
