//! Finds the heads of the frames in a stream of HTTP/2 bytes. The bytes may arrive in chunks that
//! end anywhere.

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) length: usize,
}

#[derive(Debug, Default)]
pub(crate) struct FrameScanner {
    head: [u8; 9],
    head_len: usize,
    payload_left: usize,
    /// If true, the payload belongs to a DATA frame.
    is_data: bool,
    /// If true, a CONTINUATION frame must follow.
    is_header_block_open: bool,
    /// Number of frames whose nine-byte head is complete, not counting CONTINUATION frames.
    frames: u64,
}

impl FrameScanner {
    pub(crate) fn scan(&mut self, mut bytes: &[u8], mut found: impl FnMut(Frame)) {
        loop {
            let payload = self.payload_left.min(bytes.len());
            self.payload_left -= payload;
            bytes = &bytes[payload..];
            if bytes.is_empty() {
                return;
            }
            let head = bytes.len().min(self.head.len() - self.head_len);
            self.head[self.head_len..self.head_len + head].copy_from_slice(&bytes[..head]);
            self.head_len += head;
            bytes = &bytes[head..];
            if self.head_len == self.head.len() {
                let [a, b, c, kind, flags, ..] = self.head;
                let length = u32::from_be_bytes([0, a, b, c]) as usize;
                self.begin(Frame { kind, flags, length });
                found(Frame { kind, flags, length });
            }
        }
    }

    fn begin(&mut self, frame: Frame) {
        (self.head_len, self.payload_left) = (0, frame.length);
        self.is_data = frame.kind == DATA;
        self.frames += u64::from(frame.kind != CONTINUATION);
        if matches!(frame.kind, HEADERS | CONTINUATION) {
            self.is_header_block_open = frame.flags & END_HEADERS == 0;
        }
    }

    /// Returns a lower bound of the number of bytes before another frame may start. Returns 0
    /// between two frames.
    pub(crate) fn bytes_to_frame_end(&self) -> usize {
        match self.head_len {
            0 => self.payload_left,
            has => self.head.len() - has,
        }
    }

    /// Returns the number of frames whose head is complete, not counting CONTINUATION frames.
    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    /// Returns true before the first frame, and while one of these is incomplete: the nine-byte
    /// head of a frame, a header list, or a frame other than DATA.
    pub(crate) fn is_head_incomplete(&self) -> bool {
        self.frames == 0
            || self.head_len > 0
            || self.is_header_block_open
            || self.payload_left > 0 && !self.is_data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, length: usize) -> (Frame, Vec<u8>) {
        let mut bytes = vec![0, 0, length as u8, kind, flags, 0, 0, 0, 0];
        bytes.resize(9 + length, 0xff);
        (Frame { kind, flags, length }, bytes)
    }

    #[test]
    fn frames_are_found_wherever_they_are_cut() {
        let sent = [frame(PING, 0, 8), frame(DATA, 1, 0), frame(HEADERS, 4, 200)];
        let bytes: Vec<u8> = sent.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        for piece in 1..bytes.len() {
            let (mut frames, mut found) = (FrameScanner::default(), Vec::new());
            for part in bytes.chunks(piece) {
                frames.scan(part, |frame| found.push(frame));
            }
            assert_eq!(found, sent.each_ref().map(|(frame, _)| *frame), "in pieces of {piece}");
            assert_eq!(frames.bytes_to_frame_end(), 0);
            assert_eq!((frames.frames(), frames.is_head_incomplete()), (3, false));
        }
    }

    #[test]
    fn headers_go_on_until_a_frame_says_that_they_end() {
        let mut frames = FrameScanner::default();
        let mut after = |(_, bytes): (Frame, Vec<u8>)| {
            frames.scan(&bytes, |_| {});
            (frames.is_head_incomplete(), frames.frames())
        };
        assert_eq!(after(frame(HEADERS, 0, 3)), (true, 1));
        assert_eq!(after(frame(CONTINUATION, 0, 3)), (true, 1));
        assert_eq!(after(frame(CONTINUATION, END_HEADERS, 3)), (false, 1));
        assert_eq!(after(frame(DATA, 0, 3)), (false, 2));
    }
}
