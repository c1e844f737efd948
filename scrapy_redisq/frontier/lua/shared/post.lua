-- Posts: what pages of this shard have asked of other shards, which have other logs. A page's end
-- leaves one here, in the same script, for those of its links which their shards may yet lose. It
-- is removed when they no longer can. No script looks into it.
--
-- Include  shared/keys shared/bounds shared/clock shared/counts shared/texts

-- posts is {{id, links}...}; other workers may take them after `hold` us.
local function keep_posts(posts, hold)
  in_chunks(#posts, function(first, last)
    local due, links = {}, {}
    for i = first, last do
      due[#due + 1], due[#due + 2] = integer(NOW + hold), posts[i][1]
      links[#links + 1], links[#links + 2] = posts[i][1], posts[i][2]
    end
    count('posted', redis.call('ZADD', POST, unpack(due)))
    redis.call('HSET', POSTED, unpack(links))
  end)
end

local function remove_posts(ids)
  in_chunks(#ids, function(first, last)
    count('posted', -redis.call('ZREM', POST, unpack(ids, first, last)))
    redis.call('HDEL', POSTED, unpack(ids, first, last))
  end)
end

-- When other workers may take the first one; nil if there is none.
local function first_post() return tonumber(redis.call('ZRANGE', POST, 0, 0, 'WITHSCORES')[2]) end
