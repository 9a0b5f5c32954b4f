//! Arbitrary bytes as a row of numbers and strings. At the end all are 0 and empty, so every input
//! is one.

#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(data: &'a [u8]) -> Input<'a> {
        Input { rest: data }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        self.rest.split_off_first().copied().unwrap_or_default()
    }

    /// An index into a list of so many.
    pub fn choice(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }

    /// Small as it is by itself; above 127 a number of eight bytes follows.
    pub fn number(&mut self) -> u64 {
        let first = self.byte();
        if first < 0x80 {
            return u64::from(first);
        }
        let mut bytes = [0; 8];
        bytes.iter_mut().for_each(|byte| *byte = self.byte());
        u64::from_be_bytes(bytes)
    }

    /// A length of two bytes, and as many bytes as it says, as far as they are there.
    pub fn string(&mut self) -> &'a [u8] {
        let length = u16::from_be_bytes([self.byte(), self.byte()]);
        let (string, rest) = self.rest.split_at(self.rest.len().min(usize::from(length)));
        self.rest = rest;
        string
    }

    pub fn rest(self) -> &'a [u8] {
        self.rest
    }
}

/// The reverse of [`Input::string`]: for seeds.
pub fn put_string(out: &mut Vec<u8>, string: &[u8]) {
    let length = u16::try_from(string.len()).expect("no seed is so long");
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(string);
}

/// The bytes in pieces of one length, from 1 on.
pub fn pieces(bytes: &[u8], length: u8) -> impl Iterator<Item = &[u8]> + Clone {
    bytes.chunks(usize::from(length) + 1)
}
