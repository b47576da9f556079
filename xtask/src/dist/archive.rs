//! Archives, equal byte by byte for equal content: no times, users or order of this machine.
//!
//! Written here, as a tar header is one struct and a zip file three: the crates for them would
//! bring another implementation of deflate into the workspace, and readers that are not needed.

use std::io::{self, Write};

use flate2::write::{DeflateEncoder, GzEncoder};
use flate2::{Compression, Crc, GzBuilder};

/// One file of a package.
#[derive(Clone)]
pub(super) struct File {
    /// From the root of the archive, without a leading slash.
    pub(super) path: String,
    pub(super) content: Vec<u8>,
    pub(super) executable: bool,
}

impl File {
    pub(super) fn plain(path: impl Into<String>, content: impl Into<Vec<u8>>) -> File {
        File { path: path.into(), content: content.into(), executable: false }
    }

    /// A copy of this file at another place.
    pub(super) fn at(&self, path: impl Into<String>) -> File {
        File { path: path.into(), ..self.clone() }
    }

    fn mode(&self) -> u32 {
        if self.executable { 0o755 } else { 0o644 }
    }
}

/// What all archives of a run have in common.
#[derive(Clone, Copy)]
pub(super) struct Style {
    /// Seconds since 1970, the time of every file. Not before 1980, where the time of zip begins.
    pub(super) time: u32,
    pub(super) compression: Compression,
}

impl Style {
    /// As gzip, without the name and time that its header could have.
    pub(super) fn gzip(self, content: &[u8]) -> io::Result<Vec<u8>> {
        let mut encoder: GzEncoder<_> = GzBuilder::new().write(Vec::new(), self.compression);
        encoder.write_all(content)?;
        encoder.finish()
    }

    /// A tar.gz (ustar) with its folders, owned by root.
    pub(super) fn tar_gz(self, files: &[File]) -> io::Result<Vec<u8>> {
        let mut tar = Vec::new();
        let mut folders: Vec<&str> = Vec::new();
        for file in files {
            for (end, _) in file.path.match_indices('/') {
                let folder = &file.path[..=end];
                if !folders.contains(&folder) {
                    folders.push(folder);
                    tar.extend(tar_header(folder, 0o755, 0, self.time, b'5')?);
                }
            }
            tar.extend(tar_header(&file.path, file.mode(), file.content.len(), self.time, b'0')?);
            tar.extend(&file.content);
            tar.resize(tar.len().next_multiple_of(512), 0);
        }
        tar.resize(tar.len() + 1024, 0);
        self.gzip(&tar)
    }

    /// A zip with the permissions of Unix, which pip keeps.
    pub(super) fn zip(self, files: &[File]) -> io::Result<Vec<u8>> {
        let mut zip = Vec::new();
        let mut directory = Vec::new();
        for file in files {
            let offset = short(zip.len())?;
            let mut encoder = DeflateEncoder::new(Vec::new(), self.compression);
            encoder.write_all(&file.content)?;
            let packed = encoder.finish()?;
            let mut crc = Crc::new();
            crc.update(&file.content);
            // Version 2.0, no flags, deflate; the same bytes stand in both headers.
            let mut common = vec![20, 0, 0, 0, 8, 0];
            common.extend(dos_time(self.time).to_le_bytes());
            let sizes = [crc.sum(), short(packed.len())?, short(file.content.len())?];
            common.extend(sizes.iter().flat_map(|number| number.to_le_bytes()));
            let name = u16::try_from(file.path.len()).map_err(io::Error::other)?;
            common.extend(name.to_le_bytes());
            common.extend([0, 0]);
            zip.extend(b"PK\x03\x04");
            zip.extend(&common);
            zip.extend(file.path.as_bytes());
            zip.extend(packed);
            directory.extend(b"PK\x01\x02\x14\x03");
            directory.extend(common);
            directory.extend([0; 6]);
            directory.extend(((0o100_000 | file.mode()) << 16).to_le_bytes());
            directory.extend(offset.to_le_bytes());
            directory.extend(file.path.as_bytes());
        }
        let start = short(zip.len())?;
        let count = u16::try_from(files.len()).map_err(io::Error::other)?.to_le_bytes();
        let size = short(directory.len())?;
        zip.extend(directory);
        zip.extend(b"PK\x05\x06\0\0\0\0");
        zip.extend([count, count].concat());
        zip.extend([size.to_le_bytes(), start.to_le_bytes()].concat());
        zip.extend([0, 0]);
        Ok(zip)
    }
}

fn short(length: usize) -> io::Result<u32> {
    u32::try_from(length).map_err(|_| io::Error::other("more than 4 GB"))
}

/// One block that names a file. Fields are octal text, and the checksum counts itself as spaces.
fn tar_header(path: &str, mode: u32, size: usize, time: u32, kind: u8) -> io::Result<[u8; 512]> {
    if path.len() > 100 {
        return Err(io::Error::other(format!("`{path}` is too long for a tar header")));
    }
    let mut header = [0; 512];
    let mut put =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, path);
    put(100, &format!("{mode:07o}"));
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{size:011o}"));
    put(136, &format!("{time:011o}"));
    put(148, "        ");
    put(257, "ustar\x0000root");
    put(297, "root");
    header[156] = kind;
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}

/// Time and date as zip has them, in UTC: seconds by twos, years from 1980.
fn dos_time(time: u32) -> u32 {
    let (days, seconds) = (time / 86_400, time % 86_400);
    // The civil calendar, by years that begin in March, so that a leap day is the last.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    let date = (year - 1980) << 9 | month << 5 | day;
    let clock = (seconds / 3600) << 11 | (seconds / 60 % 60) << 5 | (seconds % 60 / 2);
    date << 16 | clock
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_zip_is_the_civil_one() {
        assert_eq!(dos_time(315_532_800), 1 << 21 | 1 << 16);
        // 2024-02-29 12:34:56 and 2026-11-18 23:59:58.
        let leap = (44 << 9 | 2 << 5 | 29) << 16 | 12 << 11 | 34 << 5 | 28;
        assert_eq!(dos_time(1_709_210_096), leap);
        let late = (46 << 9 | 11 << 5 | 18) << 16 | 23 << 11 | 59 << 5 | 29;
        assert_eq!(dos_time(1_795_046_398), late);
    }
}
