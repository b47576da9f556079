//! Hash slots, as Redis Cluster computes them.

use std::sync::LazyLock;

const SLOTS: u16 = 16384;

const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// For each slot the smallest number that lies in it.
static NUMBERS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut numbers = vec![u32::MAX; usize::from(SLOTS)];
    let mut missing = SLOTS;
    // The sum of a number is that of its leading digits and one digit more.
    let mut sums: Vec<u16> = Vec::new();
    while missing > 0 {
        let number = sums.len();
        let leading = if number < 10 { 0 } else { sums[number / 10] };
        let sum = crc16_step(leading, b'0' + (number % 10) as u8);
        sums.push(sum);
        let slot = &mut numbers[usize::from(sum % SLOTS)];
        if *slot == u32::MAX {
            *slot = number as u32;
            missing -= 1;
        }
    }
    numbers
});

/// The hash slot of a key.
pub(crate) fn slot(key: &str) -> u16 {
    crc16(hash_tag(key).unwrap_or(key).as_bytes()) % SLOTS
}

/// The part of a key that its slot depends on, if it is not the whole.
pub(crate) fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    Some(tag).filter(|tag| !tag.is_empty())
}

/// The smallest number that lies in this slot: a hash tag for it.
pub(crate) fn number_in(slot: u16) -> u32 {
    NUMBERS[usize::from(slot)]
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| crc16_step(crc, *byte))
}

fn crc16_step(crc: u16, byte: u8) -> u16 {
    (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // The examples of the cluster specification.
        assert_eq!(slot("123456789"), 0x31c3);
        assert_eq!(slot("{user1000}.following"), slot("{user1000}.followers"));
        assert_eq!(slot("foo{{bar}}zap"), slot("{bar"));
    }

    #[test]
    fn the_number_of_a_slot_lies_in_it() {
        for slot in 0..SLOTS {
            assert_eq!(super::slot(&number_in(slot).to_string()), slot);
        }
    }
}
