//! The Debian mirror: the one that the machine's own apt uses, or the one that the environment
//! names. No host name is in this file.

use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const WHOLE_KEYRINGS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];
const RELEASES: [&str; 10] = [
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "sid",
    "oldoldstable",
    "oldstable",
    "stable",
    "testing",
    "unstable",
];
const NO_MIRROR: &str = "no server on PATH, and apt is not set up with a Debian mirror here; \
    name one in TENURE_MIRROR";
const NO_KEYRING: &str = "no Debian archive keys to check signatures with: install the package \
    debian-archive-keyring, or name a keyring file in TENURE_KEYRING";

/// The addresses to fetch a release from, as `(address, suite)`.
pub(super) fn sources(suite: &str) -> Result<Vec<(String, String)>, String> {
    let mirror = address("TENURE_MIRROR", false)?.ok_or_else(|| NO_MIRROR.to_owned())?;
    let mut sources = vec![(mirror, suite.to_owned())];
    // Bullseye is frozen, and its only package here, Consul, had no update. Sid has no security
    // part: fixes go directly into it.
    if !["bullseye", "sid"].contains(&suite)
        && let Some(security) = address("TENURE_MIRROR_SECURITY", true)?
    {
        sources.push((security, format!("{suite}-security")));
    }
    Ok(sources)
}

/// The file with the public keys of the Debian archive, with which apt checks every index. It may
/// be written to `folder`.
pub(super) fn keyring(folder: &Path) -> Result<PathBuf, String> {
    if let Some(chosen) = env::var_os("TENURE_KEYRING").filter(|value| !value.is_empty()) {
        return Ok(PathBuf::from(chosen));
    }
    for whole in WHOLE_KEYRINGS {
        if Path::new(whole).is_file() {
            return Ok(PathBuf::from(whole));
        }
    }
    // Armoured keys can be concatenated.
    let parts = armoured_keys();
    if parts.is_empty() {
        return Err(NO_KEYRING.to_owned());
    }
    let joined = folder.join("keyring.asc");
    let write = || -> std::io::Result<()> {
        let mut file = fs::File::create(&joined)?;
        for part in &parts {
            file.write_all(&fs::read(part)?)?;
        }
        Ok(())
    };
    write().map_err(|error| format!("{}: {error}", joined.display()))?;
    Ok(joined)
}

fn address(variable: &str, security: bool) -> Result<Option<String>, String> {
    let chosen = |variable| env::var(variable).ok().filter(|value| !value.is_empty());
    if let Some(chosen) = chosen(variable) {
        return Ok(Some(chosen));
    }
    // A mirror chosen by hand is used without apt's security part, which may not belong to it.
    if security && chosen("TENURE_MIRROR").is_some() {
        return Ok(None);
    }
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI) $(RELEASE)"])
        .env("LC_ALL", "C")
        .output()
        .map_err(|error| format!("no server on PATH, and apt-get does not run: {error}"))?;
    Ok(pick(&String::from_utf8_lossy(&output.stdout), security))
}

/// Finds the address of a Debian release in lines of `ADDRESS RELEASE`.
fn pick(lines: &str, security: bool) -> Option<String> {
    let fits = |release: &str| match release.split_once('-') {
        Some((name, "security")) => security && RELEASES.contains(&name),
        Some(_) => false,
        None => !security && RELEASES.contains(&release),
    };
    lines.lines().find_map(|line| {
        let (address, release) = line.trim().rsplit_once(' ')?;
        fits(release).then(|| address.trim_end_matches('/').to_owned())
    })
}

fn armoured_keys() -> Vec<PathBuf> {
    let folder = fs::read_dir("/etc/apt/trusted.gpg.d").into_iter().flatten().flatten();
    let mut keys: Vec<PathBuf> = folder.map(|entry| entry.path()).collect();
    keys.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("debian-archive-") && name.ends_with(".asc")
    });
    keys.sort();
    keys
}

#[cfg(test)]
mod tests {
    use super::pick;

    const HOST: &str = "m://a/security/ bookworm-security\n\
        m://a/main/ bookworm-updates\nm://a/main/ bookworm\n";

    #[test]
    fn the_mirror_of_a_debian_host_is_found() {
        assert_eq!(pick(HOST, false).as_deref(), Some("m://a/main"));
        assert_eq!(pick(HOST, true).as_deref(), Some("m://a/security"));
    }

    #[test]
    fn the_mirror_of_another_distribution_is_not_used() {
        assert_eq!(pick("m://a/other/ noble\nm://a/other/ noble-security\n", false), None);
        assert_eq!(pick("m://a/other/ noble\nm://a/other/ noble-security\n", true), None);
    }
}
