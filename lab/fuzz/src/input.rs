//! Reads arbitrary bytes as a sequence of numbers and strings. After the end of the bytes, all
//! numbers are 0 and all strings are empty. So every input is valid.

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

    /// Returns an index into a list of `count` items.
    pub fn choice(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }

    /// Returns a number. A byte below 128 is the number itself. After any other byte, the number
    /// follows in eight bytes.
    pub fn number(&mut self) -> u64 {
        let first = self.byte();
        if first < 0x80 {
            return u64::from(first);
        }
        let mut bytes = [0; 8];
        bytes.iter_mut().for_each(|byte| *byte = self.byte());
        u64::from_be_bytes(bytes)
    }

    /// Returns a string: a length in two bytes, and then that number of bytes. If fewer bytes
    /// remain, the string consists of the remaining bytes.
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

/// Appends a string in the form that [`Input::string`] reads. It is used to create seeds.
pub fn put_string(out: &mut Vec<u8>, string: &[u8]) {
    let length = u16::try_from(string.len()).expect("no seed is so long");
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(string);
}

/// Splits the bytes into pieces of `length + 1` bytes, as reads from a socket would. The last piece
/// may be shorter.
pub fn pieces(bytes: &[u8], length: u8) -> impl Iterator<Item = &[u8]> + Clone {
    bytes.chunks(usize::from(length) + 1)
}
