//! The packages: which files each has, and where.

use std::io;

use serde_json::json;
use sha2::{Digest, Sha256};

use super::archive::{File, Style};
use super::binary::Libc;
use super::content::Content;

const SUMMARY: &str = "Run a command under a distributed lock, and see who holds what";

/// A finished package.
pub(super) struct Package {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

/// All of them.
pub(super) fn all(content: &Content, style: Style) -> io::Result<Vec<Package>> {
    let make = [archive, wheel, npm, deb];
    make.iter().map(|make| make(content, style)).collect()
}

/// The plain archive: everything below one folder.
fn archive(content: &Content, style: Style) -> io::Result<Package> {
    let folder = format!("tenure-{}-{}", content.version, content.needs.suffix());
    let mut files = vec![content.program.at(format!("{folder}/tenure"))];
    let named =
        content.completions.iter().map(|(_, name, file)| (format!("completions/{name}"), file));
    let pages = content.pages.iter().map(|page| (format!("man/{}", page.path), page));
    let texts = content.texts.iter().map(|text| (text.path.clone(), text));
    let rest = named.chain(pages).chain(texts);
    files.extend(rest.map(|(path, file)| file.at(format!("{folder}/{path}"))));
    Ok(Package { name: format!("{folder}.tar.gz"), bytes: style.tar_gz(&files)? })
}

/// For pip: the program is a script of the wheel, so that it lands in `bin` as it is, and no Python
/// stands between a signal and the program.
fn wheel(content: &Content, style: Style) -> io::Result<Package> {
    let version = &content.version;
    let platform = content.needs.wheel_platform();
    let info = format!("tenure-{version}.dist-info");
    let metadata = format!(
        "Metadata-Version: 2.4\nName: tenure\nVersion: {version}\nSummary: {SUMMARY}\n\
         License-Expression: MIT OR Apache-2.0\nLicense-File: LICENSE-APACHE\n\
         License-File: LICENSE-MIT\nRequires-Python: >=3.7\n\
         Description-Content-Type: text/markdown\n\n{}",
        content.readme()
    );
    let tags: String = platform.split('.').map(|tag| format!("Tag: py3-none-{tag}\n")).collect();
    let wheel =
        format!("Wheel-Version: 1.0\nGenerator: tenure-xtask\nRoot-Is-Purelib: false\n{tags}");
    let mut files = vec![content.program.at(format!("tenure-{version}.data/scripts/tenure"))];
    let licences = content.licences().map(|text| text.at(format!("{info}/licenses/{}", text.path)));
    files.extend(licences);
    files.push(File::plain(format!("{info}/METADATA"), metadata));
    files.push(File::plain(format!("{info}/WHEEL"), wheel));
    let line = |file: &File| {
        let hash = base64(&Sha256::digest(&file.content));
        format!("{},sha256={hash},{}\n", file.path, file.content.len())
    };
    let record: String = files.iter().map(line).collect();
    let record_path = format!("{info}/RECORD");
    files.push(File::plain(record_path.clone(), format!("{record}{record_path},,\n")));
    let name = format!("tenure-{version}-py3-none-{platform}.whl");
    Ok(Package { name, bytes: style.zip(&files)? })
}

/// For npm, which links the program itself into `.bin`: no JavaScript in between, and no script
/// that runs at installation.
fn npm(content: &Content, style: Style) -> io::Result<Package> {
    let machine = content.needs.machine;
    let mut manifest = json!({
        "name": "tenure",
        "version": content.version,
        "description": SUMMARY,
        "license": "(MIT OR Apache-2.0)",
        "bin": { "tenure": "bin/tenure" },
        "os": ["linux"],
        "cpu": [machine.node],
    });
    if content.needs.libc != Libc::None {
        manifest["libc"] = json!(["glibc"]);
    }
    let mut files = vec![
        File::plain("package/package.json", format!("{manifest:#}\n")),
        content.program.at("package/bin/tenure"),
    ];
    files.extend(content.texts.iter().map(|text| text.at(format!("package/{}", text.path))));
    let name = format!("tenure-{}-npm-linux-{}.tgz", content.version, machine.node);
    Ok(Package { name, bytes: style.tar_gz(&files)? })
}

/// For Debian and what descends from it: an `ar` of three files, of which two are tar.gz, so that
/// neither `cargo-deb` nor `dpkg-deb` has to be installed, and the program is the same one.
fn deb(content: &Content, style: Style) -> io::Result<Package> {
    let mut files = vec![content.program.at("./usr/bin/tenure")];
    for (folder, name, script) in &content.completions {
        files.push(script.at(format!("./{folder}/{name}")));
    }
    for page in &content.pages {
        let path = format!("./usr/share/man/man1/{}.gz", page.path);
        files.push(File::plain(path, style.gzip(&page.content)?));
    }
    let texts = content.texts.iter().filter(|text| !text.path.starts_with("LICENSE"));
    files.extend(texts.map(|text| text.at(format!("./usr/share/doc/tenure/{}", text.path))));
    let licences =
        content.licences().map(|text| String::from_utf8_lossy(&text.content).into_owned());
    let licences: Vec<String> = licences.collect();
    let copyright = format!("License: MIT OR Apache-2.0\n\n{}", licences.join("\n\n"));
    files.push(File::plain("./usr/share/doc/tenure/copyright", copyright));
    let kilobytes = files.iter().map(|file| file.content.len()).sum::<usize>().div_ceil(1024);
    let control = [File::plain("./control", control(content, kilobytes))];
    let (version, architecture) = (&content.version, content.needs.machine.debian);
    let mut bytes = b"!<arch>\n".to_vec();
    for (name, part) in [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", style.tar_gz(&control)?),
        ("data.tar.gz", style.tar_gz(&files)?),
    ] {
        let header =
            format!("{name:<16}{:<12}0     0     100644  {:<10}`\n", style.time, part.len());
        bytes.extend(header.as_bytes());
        bytes.extend(&part);
        bytes.resize(bytes.len().next_multiple_of(2), b'\n');
    }
    Ok(Package { name: format!("tenure_{version}_{architecture}.deb"), bytes })
}

/// Nothing is published, so that the maintainer has no address yet.
fn control(content: &Content, kilobytes: usize) -> String {
    let depends = match content.needs.libc {
        Libc::Glibc(minor) => format!("Depends: libc6 (>= 2.{minor}), libgcc-s1\n"),
        Libc::StaticGlibc(_) | Libc::None => String::new(),
    };
    format!(
        "Package: tenure\nVersion: {}\nArchitecture: {}\nMaintainer: the contributors of tenure\n\
         Installed-Size: {kilobytes}\n{depends}Section: admin\nPriority: optional\n\
         Description: {SUMMARY}\n\
         \x20Like flock(1), but across machines: the lock lives on a server that you\n\
         \x20already run, or in a file. Every grant has a fencing token.\n",
        content.version, content.needs.machine.debian
    )
}

/// As RECORD has it: for URLs, without padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let chunks = bytes.chunks(3).flat_map(|chunk| {
        let bits = (0..3)
            .fold(0, |bits, at| bits << 8 | u32::from(chunk.get(at).copied().unwrap_or_default()));
        let digit = move |at: usize| DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
        (0..=chunk.len()).map(move |at| char::from(digit(at)))
    });
    chunks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_written_for_urls_and_without_padding() {
        assert_eq!(base64(b""), "");
        assert_eq!(base64(b"f"), "Zg");
        assert_eq!(base64(b"fo"), "Zm8");
        assert_eq!(base64(b"foobar"), "Zm9vYmFy");
        assert_eq!(base64(&[0xfb, 0xff]), "-_8");
    }
}
