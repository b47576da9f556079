//! The data of a claim's node, which operators see in listings. Curator and other clients do not
//! read it.

use std::net::IpAddr;
use std::time::Duration;

use crate::backend::HolderInfo;

/// The holder info, and the timeout of the session: for how long the server keeps the node without
/// hearing from the client.
pub(crate) fn encode(info: &HolderInfo, timeout: Duration) -> Vec<u8> {
    format!("{}\t{}", info.encode(), timeout.as_millis()).into_bytes()
}

/// Decodes the data of any node. Curator writes the address of its machine, which is shown as the
/// host; any other text is shown as it is.
pub(crate) fn decode(data: &[u8]) -> (HolderInfo, Option<Duration>) {
    let text = String::from_utf8_lossy(data);
    if let Some((info, millis)) = text.rsplit_once('\t')
        && let Ok(millis) = millis.parse()
        && info.matches('\t').count() == 3
    {
        return (HolderInfo::decode(info), Some(Duration::from_millis(millis)));
    }
    match text.parse::<IpAddr>() {
        Ok(address) => (HolderInfo::new("", address.to_string(), 0, ""), None),
        Err(_) => (HolderInfo::decode(&text), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_decodes_again_and_foreign_data_is_shown() {
        let info = HolderInfo::new("web\t3", "host-a", 71, "deploy\t1\n");
        let timeout = Duration::from_secs(15);
        assert_eq!(decode(&encode(&info, timeout)), (info, Some(timeout)));
        assert_eq!(decode(b"10.0.0.7").0.host(), "10.0.0.7");
        assert_eq!(decode(b"job 7").0.text(), "job 7");
        assert_eq!(decode(b"").0, HolderInfo::default());
        assert_eq!(decode(b"\xff\tx").1, None);
    }
}
