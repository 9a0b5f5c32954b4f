//! A codec for streams that are idle most of the time.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Size of the buffer that each direction of a stream has from its start. A longer message gets
/// more. tonic's default is 8 KiB, which is most of the memory of an idle stream.
const BUFFER_BYTES: usize = 256;
/// A stream sends its encoded messages when they have this many bytes, as in tonic's default.
const SEND_BYTES: usize = 32 << 10;

/// Encodes messages `T` and decodes messages `U`.
pub(crate) struct SmallBuffers<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallBuffers<T, U> {
    fn default() -> Self {
        SmallBuffers(PhantomData)
    }
}

impl<T, U> Codec for SmallBuffers<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER_BYTES, SEND_BYTES))
    }

    fn decoder(&mut self) -> ProstDecoder<U> {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER_BYTES, SEND_BYTES))
    }
}
